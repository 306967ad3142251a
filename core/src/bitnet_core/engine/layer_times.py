"""Measure the time that a device takes for a layer and for the head in a decode step of one row."""

from __future__ import annotations

import time

import numpy as np
from bitnet_hal.device import Device
from bitnet_hal.kernels.catalogue import KV_BLOCK, STEP_FIELDS

from bitnet_core.engine.part import Part
from bitnet_core.model.config import ModelConfig
from bitnet_core.model.source import ModelSource
from bitnet_core.options.engine import EngineOptions
from bitnet_core.plan.kinds import plan_class
from bitnet_core.plan.scratch import Scratch

_RUNS = 4
"""Timed runs; the fastest one counts."""

_MOST_STEPS = 20
"""Maximum steps of a run: many, as the host waits for the last one only."""

_RUN_SECONDS = 0.01
"""Seconds that a run may take; one of a slow device has fewer steps."""


def layer_seconds(source: ModelSource, options: EngineOptions, device: Device) -> float:
    """Return the seconds of one layer, without embedding and head. Nothing may be loaded on the device."""
    config = options.config_of(source.config)
    return _step_seconds(source, options, device, config.part(min(1, config.n_layers - 2), 1))


def head_seconds(source: ModelSource, options: EngineOptions, device: Device, layer: float) -> float:
    """Return the seconds of the head. layer: result of `layer_seconds`."""
    config = options.config_of(source.config)
    return max(0.0, _step_seconds(source, options, device, config.part(config.n_layers - 1, 1)) - layer)


def _step_seconds(source: ModelSource, options: EngineOptions, device: Device, config: ModelConfig) -> float:
    """Return the seconds of the layers of `config`, and of the head if they are the last."""
    part = Part(source, device, options, config)
    part.load(KV_BLOCK, None)
    try:
        plan = plan_class(config)(part.weights, part.launcher, options.kv_cache_type, fused=not options.deterministic)
        cache = part.cache(1, 1, KV_BLOCK)
        scratch = Scratch(device, part.pool, config, 1, 0 if config.layers_after else 1)
        cache.set_table(0, [0])
        cache.upload_tables()
        scratch.upload("step", np.zeros((1, STEP_FIELDS), np.int32))
        launches = plan.body(scratch, cache, 1, decode=True)
        if not config.layers_after:
            scratch.upload("index", np.zeros(1, np.int32))
            launches += plan.head(scratch, 1, 1, 1)
        recorded = part.launcher.record(launches)
        steps, times = 1, []
        for _ in range(_RUNS + 1):
            began = time.perf_counter()
            part.launcher.replay(recorded, steps)
            device.synchronize()
            times.append((time.perf_counter() - began) / steps)
            steps = max(1, min(_MOST_STEPS, int(_RUN_SECONDS / times[-1])))
        recorded.recording.close()
        scratch.free()
        cache.free()
        return min(times[1:])  # the first run compiles kernels
    finally:
        part.free()
