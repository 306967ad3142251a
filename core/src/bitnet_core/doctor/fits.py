"""Check whether a model fits on the devices."""

from __future__ import annotations

from collections.abc import Sequence

from bitnet_hal.device import Device, DeviceInfo
from bitnet_hal.discovery.selection import open_listed
from bitnet_hal.errors import BitnetError, GpuError

from bitnet_core.engine.fit import Fit, predict
from bitnet_core.engine.memory_limit import limit_memory
from bitnet_core.engine.placement import offloaded_layers
from bitnet_core.model.source import Finding, ModelSource
from bitnet_core.options.engine import EngineOptions
from bitnet_core.plan.weight_sizes import layer_bytes
from bitnet_core.units import size

_GIB = 2**30


def fit_findings(source: ModelSource, present: Sequence[DeviceInfo], device_memory: int | None = None) -> list[Finding]:
    """Return a finding per device with the bytes that the model takes with default options, and whether it loads.
    device_memory: see EngineOptions."""
    findings = []
    for info in present:
        try:
            device = open_listed(info)
            try:
                limit_memory(device, device_memory)
                findings.append(_fit(source, device))
            finally:
                device.close()
        except GpuError as error:
            findings.append(Finding("warning", "model-fits", f"{info.request}: not known, {error}"))
    return findings


def _fit(source: ModelSource, device: Device) -> Finding:
    """Compare the model's memory with a device's free memory.

    Weights that a device reads from host memory are pages of the mapped file: the system can drop them.
    """
    request = device.info.request
    try:
        fit = predict(source, device, EngineOptions())
    except GpuError:
        raise
    except BitnetError as error:
        return Finding("warning", "model-fits", f"{request}: no, {error}")
    plan = fit.wanted
    parts = {"weights": plan.weights + plan.wrapped, "cache": plan.kv_cache, "scratch": plan.scratch}
    text = ", ".join(f"{name} {nbytes / _GIB:.2f}" for name, nbytes in parts.items())
    text += " GiB; free memory is not known" if fit.free < 0 else f" GiB; {fit.free / _GIB:.2f} GiB are free"
    if fit.fits:
        return Finding("info", "model-fits", f"{request}: yes, {text}")
    least = f"{fit.least.loaded / _GIB:.2f} GiB"
    if fit.loads:
        smaller = f"yes, with a smaller cache or fewer requests (--context, --max-sequences), from {least} on"
        return Finding("info", "model-fits", f"{request}: {smaller}; by default {text}")
    if layers := _offloaded(source, device, fit):
        of = source.config.n_layers
        read = size(layer_bytes(source.config.part(0, layers)))
        partly = f"yes, with {layers} of {of} layers on the CPU (--offload), which reads {read} for each step"
        partly += f"; the whole model needs {least}"
        return Finding("info", "model-fits", f"{request}: {partly}; by default {text}")
    return Finding("warning", "model-fits", f"{request}: no, it takes {least} at least; by default {text}")


def _offloaded(source: ModelSource, device: Device, fit: Fit) -> int:
    """Return the number of layers that the CPU computes for a device on which the model does not load; 0 if even one
    layer with the head does not fit."""
    return offloaded_layers(source, EngineOptions(), device) if fit.loads_partly else 0
