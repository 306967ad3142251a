"""Statistics of a model: launches, tokens, speed and memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bitnet_hal.device import DeviceType
from bitnet_hal.discovery.selection import BackendStartupSummary

from bitnet_core.engine.engine import Engine
from bitnet_core.measure.host_memory import host_memory


def stats_of(engine: Engine, summary: BackendStartupSummary) -> dict[str, Any]:
    """Return the dictionary of Model.stats."""
    by_device = engine.kernel_launches_by_device
    errors = engine.scheduler.errors
    return {
        "kernel_launches": dict(engine.kernel_launches),
        "kernel_launches_by_device": {request: dict(counts) for request, counts in by_device.items()},
        "layers_by_device": engine.layers_by_device,
        "memory": engine.memory() | {"free_bytes": engine.device.free_memory()},
        "host": host_memory(),
        **engine.figures(),
        **engine.averages(),
        "speculation": engine.speculation.figures(engine.scheduler.counts),
        "fallbacks": [{"device": info.request, "reason": reason} for info, reason in summary.skipped],
        "gpu_share": _gpu_launches(engine, by_device, summary) / max(1, engine.kernel_launches.total()),
        "error_counts": dict(errors.counts),
        "errors": [asdict(record) for record in errors.recent],
    }


def _gpu_launches(engine: Engine, by_device: Mapping[str, Counter[str]], summary: BackendStartupSummary) -> int:
    used = [part.device.info for part in engine.worker.parts] + [info for info, _ in summary.skipped]
    hardware = (DeviceType.GPU, DeviceType.INTEGRATED)
    gpus = {info.request for info in used if info.type in hardware and not info.fake}
    return sum(counts.total() for request, counts in by_device.items() if request in gpus)
