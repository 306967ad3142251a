"""Enumeration of adapters, and the request of a device."""

from __future__ import annotations

from types import MappingProxyType

from bitnet_hal.errors import BackendUnavailableError
from bitnet_hal.kernels.catalogue import UNFUSED_KERNELS
from bitnet_hal.plugin import FEW_ROWS, DeviceInfo, DeviceType, EnumeratedDevice, failure, table

from bitnet_webgpu.driver import BACKEND, Handle, module
from bitnet_webgpu.errors import checked
from bitnet_webgpu.filters import chosen, chosen_apis

KNOWN = table(__file__, "adapters.toml")
GROUP = 256
"""WebGPU's default limit of threads per workgroup."""
GROUPS = 65535
"""WebGPU's default limit of workgroups per dimension."""
STORAGE = 16384
"""WebGPU's default limit of workgroup memory in bytes."""


def usable() -> list[EnumeratedDevice]:
    """Return the adapters that can be used, with their index among all adapters.

    Raises BackendUnavailableError if there is none.
    """
    with checked("list devices"):
        found = [
            EnumeratedDevice(adapter, describe(adapter, index))
            for index, adapter in chosen(enumerate(module().gpu.enumerate_adapters_sync()))
            if adapter.info["backend_type"] in KNOWN["apis"]
        ]
    if not found:
        hint = "Install a driver for Vulkan, Metal or Direct3D 12 (Debian: apt install mesa-vulkan-drivers)"
        if chosen_apis() is not None:
            hint = "Unset WGPU_BACKEND and WGPU_BACKEND_TYPE, or name vulkan, metal or dx12"
        raise failure(BackendUnavailableError, "list devices", backend=BACKEND, said="no WebGPU adapter", hint=hint)
    return found


def device_infos() -> list[DeviceInfo]:
    """Return the DeviceInfo of all adapters that can be used. Raises BackendUnavailableError if there is none."""
    return [adapter.info for adapter in usable()]


def request(adapter: EnumeratedDevice) -> Handle:
    """Request a device with the adapter's limits, and with the features of adapters.toml that it has."""
    handle, info = adapter
    with checked("open", info.name):
        limits = {name: handle.limits[name] for name in KNOWN["limits"]}
        features = [name for name in KNOWN["features"] if name in handle.features]
        return handle.request_device_sync(required_features=features, required_limits=limits)


def describe(adapter: Handle, index: int) -> DeviceInfo:
    """Return the DeviceInfo of an adapter."""
    about = adapter.info
    limits = adapter.limits
    kind = DeviceType(KNOWN["types"].get(about["adapter_type"], "gpu"))
    vendor, subgroups = KNOWN["vendors"].get(f"{about['vendor_id']:04x}", (about["vendor"], 1))
    buffers = limits["max-storage-buffers-per-shader-stage"]
    fused = {} if kind is DeviceType.SOFTWARE else KNOWN["fused"]
    fitting = [name for name, needed in fused.items() if needed <= buffers]
    features = {"tunings", "replay-many", "async-readback"}
    if "timestamp-query" in adapter.features:
        features.add("timings")
    if vendor in KNOWN["lm-head-int8"]:
        features.add("lm-head-int8")
    extra = {
        "api": about["backend_type"],
        "workgroup_storage": limits["max-compute-workgroup-storage-size"],
        "storage_buffers": buffers,
        "subgroups": subgroups if "subgroup" in adapter.features else 1,
    }
    return DeviceInfo(
        backend=BACKEND,
        index=index,
        name=about["device"] or about["description"] or about["vendor"] or f"adapter {index}",
        type=kind,
        vendor=vendor,
        driver=f"{about['backend_type']}, {about['description']}",
        max_allocation=limits["max-buffer-size"],
        max_binding=limits["max-storage-buffer-binding-size"] // 16 * 16,
        max_grid=(GROUPS, GROUPS, GROUPS),
        alignment=max(16, limits["min-storage-buffer-offset-alignment"]),
        batch_invariant_rows=dict.fromkeys(UNFUSED_KERNELS, FEW_ROWS),
        kernels=frozenset([*KNOWN["everywhere"], *fitting]),
        features=frozenset(features),
        extra=MappingProxyType(extra),
    )
