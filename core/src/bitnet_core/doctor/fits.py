"""The check whether a model fits on the devices."""

from __future__ import annotations

from collections.abc import Sequence

from bitnet_hal.device import Device, DeviceInfo, TransferMode
from bitnet_hal.discovery.selection import open_listed
from bitnet_hal.errors import GpuError, UsageError

from bitnet_core.engine.capacity import cache_blocks, concurrency, free_share, widest_chunk
from bitnet_core.engine.kv_cache.cache import cache_bytes
from bitnet_core.engine.speculation.choice import verify_rows
from bitnet_core.model.source import Finding, ModelSource
from bitnet_core.options.engine import EngineOptions
from bitnet_core.plan.memory import plan_memory

_GIB = 2**30


def fit_findings(source: ModelSource, present: Sequence[DeviceInfo]) -> list[Finding]:
    """Return for each device the bytes that the model takes with default options, and whether they are free."""
    findings = []
    for info in present:
        try:
            device = open_listed(info)
            try:
                findings.append(_fit(source, device))
            finally:
                device.close()
        except GpuError as error:
            findings.append(Finding("warning", "model-fits", f"{info.request}: not known, {error}"))
    return findings


def _fit(source: ModelSource, device: Device) -> Finding:
    """Compare the model's size with a device's free memory.

    A device that works in host memory uses the weights of the mapped file, so they count little.
    """
    info, options = device.info, EngineOptions()
    config = options.config_of(source.config)
    chunk = widest_chunk(config, info, options.prefill_chunk, options.max_sequences)
    room = concurrency(options, source, device, options.max_sequences, chunk)
    rows = verify_rows(options, config, info, room.requests, chunk)
    plan = plan_memory(source, kv_cache=0, sequences=room.requests, chunk=chunk, verify_rows=rows)
    try:
        blocks = cache_blocks(options, config, info, room.requests, free_share(device, plan.total), room.more_states)
    except UsageError as error:
        return Finding("warning", "model-fits", f"{info.request}: no, {error}")
    cache = cache_bytes(config, options.kv_dtype, blocks, room.requests + room.more_states)
    free = device.free_memory()
    free = info.total_memory if free < 0 else free
    need = plan.total + cache - (plan.weights if info.transfer is TransferMode.UNIFIED else 0)
    parts = {"weights": plan.weights, "cache": cache, "scratch": plan.total - plan.weights}
    text = ", ".join(f"{name} {nbytes / _GIB:.2f}" for name, nbytes in parts.items())
    text += f" GiB; {free / _GIB:.2f} GiB are free"
    if need <= free or not free:
        return Finding("info", "model-fits", f"{info.request}: yes, {text}")
    smaller = need - cache <= free
    advice = "with a smaller cache (--context, --kv-cache-type int8)" if smaller else "not even without a cache"
    return Finding("info" if smaller else "warning", "model-fits", f"{info.request}: {advice}, {text}")
