"""Sizes that an engine's options come to."""

from __future__ import annotations

from bitnet_core.api.loading import open_source
from bitnet_core.engine.capacity import memory_wanted
from bitnet_core.engine.engine import Engine
from bitnet_core.options.engine import EngineOptions
from bitnet_hal.reference.device import NumpyDevice


def test_an_engine_wants_the_memory_of_its_longest_sequence() -> None:
    options = EngineOptions(context=128, max_sequences=1)
    device, source = NumpyDevice(), open_source(None, None, False, True)
    wanted = memory_wanted(options, source, device)
    engine = Engine(source, device, options)
    planned = engine.memory_plan()
    assert (wanted.weights, wanted.kv_cache) == (planned.weights, planned.kv_cache)  # of two blocks
    assert wanted.total >= planned.total > wanted.weights
    assert memory_wanted(EngineOptions(kv_cache_size=1 << 20), source, device).kv_cache == 1 << 20
    engine.close()
    source.close()
