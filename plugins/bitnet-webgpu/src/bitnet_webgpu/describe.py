"""What each adapter is, and how a device is asked for."""

from __future__ import annotations

from types import MappingProxyType

from bitnet_core.errors import BackendUnavailableError, DeviceNotFoundError
from bitnet_core.hal import DeviceInfo, DeviceType

from bitnet_webgpu.driver import Handle, module
from bitnet_webgpu.errors import BACKEND, Stage, checked

_APIS = ("Vulkan", "Metal", "D3D12")
"""OpenGL adapters are left out: the same GPUs, without the packed dot product."""
_TYPES = {"DiscreteGPU": DeviceType.GPU, "IntegratedGPU": DeviceType.INTEGRATED, "CPU": DeviceType.SOFTWARE}
_VENDORS = {0x1002: "AMD", 0x10DE: "NVIDIA", 0x8086: "Intel", 0x13B5: "ARM", 0x5143: "Qualcomm", 0x106B: "Apple"}
_SUBGROUPS = {"AMD": 32, "NVIDIA": 32, "Intel": 8, "Apple": 32}
"""Threads of a vendor's smallest subgroups, which wgpu does not tell. Others promise no more than 4, which saves
nothing."""
FEATURES = ("subgroup", "timestamp-query")
"""Asked for where they are there. The packed dot product is part of the language, and shader-f16 would add nothing: the
f16 of tables and caches become f32 by built-ins that need no feature."""
LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-workgroup-storage-size",
    "min-storage-buffer-offset-alignment",
)
"""Asked for as the adapter has them; what is not asked for is WebGPU's default."""
GROUP, GROUPS, STORAGE = 256, 65535, 16384
"""WebGPU's defaults: threads of a workgroup, workgroups in a dimension, bytes of workgroup memory."""
JOINED = {"norm_matmul": 5, "norm_matmul_glu": 5, "rope_attention": 10}
"""Storage buffers of what GPUs are offered. A CPU is quicker without: these do the same in many workgroups, to save
dispatches."""


def usable() -> list[tuple[Handle, DeviceInfo]]:
    """Adapters and what they are; BackendUnavailableError if there are none. One that is left out keeps its index."""
    with checked(Stage.DEVICE):
        adapters = enumerate(module().gpu.enumerate_adapters_sync())
        found = [(one, describe(one, index)) for index, one in adapters if one.info["backend_type"] in _APIS]
    if not found:
        raise BackendUnavailableError(
            "no WebGPU adapter",
            backend=BACKEND,
            operation="list devices",
            hint="Install a driver for Vulkan, Metal or Direct3D 12 (Debian: apt install mesa-vulkan-drivers)",
        )
    return found


def find(index: int) -> tuple[Handle, DeviceInfo]:
    """The adapter with this index; DeviceNotFoundError if there is none."""
    for adapter, info in usable():
        if info.index == index:
            return adapter, info
    raise DeviceNotFoundError(f"there is no adapter {index}", backend=BACKEND, operation=Stage.DEVICE.value)


def request(adapter: Handle, info: DeviceInfo) -> Handle:
    """A device with the adapter's limits, and its features that are used."""
    features = [name for name in FEATURES if name in adapter.features]
    with checked(Stage.DEVICE, info.name):
        limits = {name: adapter.limits[name] for name in LIMITS}
        return adapter.request_device_sync(required_features=features, required_limits=limits)


def describe(adapter: Handle, index: int) -> DeviceInfo:
    """An adapter as core sees it."""
    about, limits = adapter.info, adapter.limits
    kind, vendor = _TYPES.get(about["adapter_type"], DeviceType.GPU), _VENDORS.get(about["vendor_id"], about["vendor"])
    buffers = limits["max-storage-buffers-per-shader-stage"]
    joined = [] if kind is DeviceType.SOFTWARE else [name for name, count in JOINED.items() if count <= buffers]
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
        kernels=frozenset(("top_k", *joined)),
        features=frozenset({"tunings", "timings"} if "timestamp-query" in adapter.features else {"tunings"}),
        extra=MappingProxyType(
            {
                "api": about["backend_type"],
                "workgroup_storage": limits["max-compute-workgroup-storage-size"],
                "storage_buffers": buffers,
                "subgroups": _SUBGROUPS.get(vendor, 1) if "subgroup" in adapter.features else 1,
            }
        ),
    )
