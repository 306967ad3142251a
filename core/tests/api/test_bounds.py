"""Sizes that a file claims decide no work: tables follow the context in use, and lengths are checked first."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType

import bitnet_core
import pytest
from bitnet_core.engine.engine import Engine
from bitnet_core.errors import ModelError
from bitnet_core.model.rope import rope_table
from bitnet_core.options.engine import DEFAULT_CONTEXT, EngineOptions
from bitnet_hal.errors import UsageError
from bitnet_hal.reference.device import NumpyDevice


@pytest.fixture
def peak() -> Iterator[Callable[[], int]]:
    """peak(): most bytes that Python and numpy held since the test began."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


def test_a_claimed_context_makes_no_large_table(tiny: ModuleType, peak: Callable[[], int]) -> None:
    source = tiny.TinySource(replace(tiny.CONFIGS["offline"], context=1 << 24))
    engine = Engine(source, NumpyDevice(), EngineOptions(kv_cache_size=1 << 20))
    assert engine.context == DEFAULT_CONTEXT
    assert peak() < 64 << 20
    engine.close()
    asked = Engine(source, NumpyDevice(), EngineOptions(kv_cache_size=1 << 20, context=DEFAULT_CONTEXT + 1))
    assert asked.context == DEFAULT_CONTEXT + 1
    asked.close()


def test_lengths_are_checked_before_anything_is_made(
    make_engine: Callable[..., Engine], peak: Callable[[], int]
) -> None:
    engine = make_engine()
    tokens = [1] * 10**7
    before, started = peak(), time.process_time()
    with pytest.raises(UsageError, match="not 10000000"):
        engine.logits(tokens)
    with pytest.raises(UsageError, match="not 0"):
        engine.logits([])
    assert peak() - before < 1 << 20
    assert time.process_time() - started < 1


def test_too_many_tokens_are_not_looked_at_one_by_one() -> None:
    tokens = [1] * 10**7
    with bitnet_core.load(None, "numpy") as model:
        started = time.process_time()
        with pytest.raises(UsageError, match="not 10000000"):
            model.logits(tokens)
        assert time.process_time() - started < 1


def test_a_prompt_that_cannot_fit_is_not_encoded() -> None:
    with bitnet_core.load(None, "numpy") as model:
        started = time.process_time()
        for ask in (model.generate, lambda text: model.chat([{"role": "user", "content": text}])):
            with pytest.raises(UsageError, match="characters"):
                ask("x" * 3_000_000)
        assert time.process_time() - started < 2


@pytest.mark.parametrize(
    "values",
    [
        {"rope_scaling": "yarn", "rope_theta": 1.0, "rope_factor": 4.0},
        {"rope_scaling": "llama3", "rope_original_context": 1, "rope_factor": 1e-45},
        {"rope_scaling": "linear", "rope_factor": 1e-45},
    ],
)
def test_rope_values_that_give_no_numbers_are_refused(tiny: ModuleType, values: dict[str, object]) -> None:
    with pytest.raises(ModelError, match="RoPE values"):
        rope_table(replace(tiny.CONFIGS["offline"], **values), 16)
