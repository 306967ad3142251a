"""What each adapter is, and how a device is asked for."""

from __future__ import annotations

from types import MappingProxyType

from bitnet_hal.errors import BackendUnavailableError
from bitnet_hal.plugin import DeviceInfo, DeviceType, EnumeratedDevice, failure, table

from bitnet_webgpu.driver import BACKEND, Handle, module
from bitnet_webgpu.errors import checked
from bitnet_webgpu.filters import chosen, chosen_apis

KNOWN = table(__file__, "adapters.toml")
GROUP, GROUPS, STORAGE = 256, 65535, 16384
"""WebGPU's defaults: threads of a workgroup, workgroups in a dimension, bytes of workgroup memory."""


def usable() -> list[EnumeratedDevice]:
    """Adapters; BackendUnavailableError if there are none. One that is left out keeps its index."""
    with checked("list devices"):
        adapters = chosen(enumerate(module().gpu.enumerate_adapters_sync()))
        shown = [(one, index) for index, one in adapters if one.info["backend_type"] in KNOWN["apis"]]
        found = [EnumeratedDevice(one, describe(one, index)) for one, index in shown]
    if not found:
        hint = "Install a driver for Vulkan, Metal or Direct3D 12 (Debian: apt install mesa-vulkan-drivers)"
        if chosen_apis() is not None:
            hint = "Unset WGPU_BACKEND and WGPU_BACKEND_TYPE, or name vulkan, metal or dx12"
        raise failure(BackendUnavailableError, "list devices", backend=BACKEND, said="no WebGPU adapter", hint=hint)
    return found


def device_infos() -> list[DeviceInfo]:
    """Of all adapters that can be used; BackendUnavailableError says what is missing."""
    return [adapter.info for adapter in usable()]


def request(adapter: EnumeratedDevice) -> Handle:
    """A device with the adapter's limits, and its features that are used."""
    handle, info = adapter
    with checked("open", info.name):
        limits = {name: handle.limits[name] for name in KNOWN["limits"]}
        features = [name for name in KNOWN["features"] if name in handle.features]
        return handle.request_device_sync(required_features=features, required_limits=limits)


def describe(adapter: Handle, index: int) -> DeviceInfo:
    """An adapter as core sees it."""
    about, limits = adapter.info, adapter.limits
    kind = DeviceType(KNOWN["types"].get(about["adapter_type"], "gpu"))
    vendor, subgroups = KNOWN["vendors"].get(f"{about['vendor_id']:04x}", (about["vendor"], 1))
    buffers = limits["max-storage-buffers-per-shader-stage"]
    fused = {} if kind is DeviceType.SOFTWARE else KNOWN["fused"]
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
        kernels=frozenset([*KNOWN["everywhere"], *(name for name, count in fused.items() if count <= buffers)]),
        features=frozenset({"tunings", "timings"} if "timestamp-query" in adapter.features else {"tunings"}),
        extra=MappingProxyType(extra),
    )
