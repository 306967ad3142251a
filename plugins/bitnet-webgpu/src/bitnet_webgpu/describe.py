"""What each adapter is, and how a device is asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from bitnet_core.errors import BackendUnavailableError, DeviceNotFoundError
from bitnet_core.hal import DeviceInfo, DeviceType

from bitnet_webgpu.driver import Handle, module
from bitnet_webgpu.errors import BACKEND, Stage, checked

_BACKENDS = ("Vulkan", "Metal", "D3D12")
"""OpenGL adapters are left out: the same GPUs, without the packed dot product."""
_TYPES = {"DiscreteGPU": DeviceType.GPU, "IntegratedGPU": DeviceType.INTEGRATED, "CPU": DeviceType.SOFTWARE}
_VENDORS = {0x1002: "AMD", 0x10DE: "NVIDIA", 0x8086: "Intel", 0x13B5: "ARM", 0x5143: "Qualcomm", 0x106B: "Apple"}
_FIXED = ("Vulkan", "Metal")
"""APIs whose subgroups have one size in all kernels; Direct3D's drivers choose for each."""
LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
    "min-storage-buffer-offset-alignment",
)
"""Asked for as the adapter has them; what is not asked for is WebGPU's default."""
GROUP, STORAGE = 256, 16384
"""Threads and bytes of workgroup memory that every kernel may count on: WebGPU's defaults."""
JOINED = ("norm_matmul", "norm_matmul_glu", "rope_attention")
"""What GPUs are offered. A CPU is quicker without: these do the same in many workgroups, to save dispatches."""
_BINDINGS_OF_ROPE_ATTENTION = 10


def adapters() -> list[Handle]:
    """All that wgpu finds."""
    with checked(Stage.DEVICE):
        return list(module().gpu.enumerate_adapters_sync())


def usable() -> list[tuple[Handle, DeviceInfo]]:
    """Adapters and what they are; BackendUnavailableError if there are none. One that is left out keeps its index."""
    found = [
        (adapter, _describe(adapter, index))
        for index, adapter in enumerate(adapters())
        if adapter.info["backend_type"] in _BACKENDS
    ]
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
    """A device with the limits of the adapter and the features that are used."""
    features = ["timestamp-query"] if "timings" in info.features else []
    features += ["subgroup"] if info.extra["api"] in _FIXED and "subgroup" in adapter.features else []
    with checked(Stage.DEVICE, info.name):
        limits = {name: adapter.limits[name] for name in LIMITS}
        return adapter.request_device_sync(required_features=features, required_limits=limits)


def subgroup_size(device: Handle, read: Callable[[Handle, int], bytes]) -> int:
    """Threads of the subgroups that consecutive threads form; 1 where there are none, or where they are others.

    read: bytes of a buffer.
    """
    if "subgroup" not in device.features:
        return 1
    usage = module().BufferUsage
    found = device.create_buffer(size=4 * GROUP, usage=usage.STORAGE | usage.COPY_SRC)
    code = (files("bitnet_webgpu") / "kernels" / "subgroup_size.wgsl").read_text("utf-8")
    compute = {"module": device.create_shader_module(code=code), "entry_point": "main"}
    pipeline = device.create_compute_pipeline(layout="auto", compute=compute)
    entries = [{"binding": 0, "resource": {"buffer": found}}]
    group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
    encoder = device.create_command_encoder()
    work = encoder.begin_compute_pass()
    work.set_pipeline(pipeline)
    work.set_bind_group(0, group)
    work.dispatch_workgroups(1)
    work.end()
    device.queue.submit([encoder.finish()])
    return max(1, min(memoryview(read(found, 4 * GROUP)).cast("I")))


def _describe(adapter: Handle, index: int) -> DeviceInfo:
    about: dict[str, Any] = dict(adapter.info)
    limits = adapter.limits
    kind = _TYPES.get(about["adapter_type"], DeviceType.GPU)
    joined = JOINED if limits["max-storage-buffers-per-shader-stage"] >= _BINDINGS_OF_ROPE_ATTENTION else JOINED[:2]
    grid = limits["max-compute-workgroups-per-dimension"]
    return DeviceInfo(
        backend=BACKEND,
        index=index,
        name=about["device"] or about["description"] or about["vendor"] or f"adapter {index}",
        type=kind,
        vendor=_VENDORS.get(about["vendor_id"], about["vendor"]),
        driver=f"{about['backend_type']}, {about['description']}",
        max_allocation=limits["max-buffer-size"],
        max_binding=limits["max-storage-buffer-binding-size"] // 16 * 16,
        max_grid=(grid, grid, grid),
        alignment=max(16, limits["min-storage-buffer-offset-alignment"]),
        kernels=frozenset(("top_k",) if kind is DeviceType.SOFTWARE else ("top_k", *joined)),
        features=frozenset({"timings"} if "timestamp-query" in adapter.features else ()),
        extra=MappingProxyType(
            {
                "api": about["backend_type"],
                "workgroup_storage": limits["max-compute-workgroup-storage-size"],
                "storage_buffers": limits["max-storage-buffers-per-shader-stage"],
            }
        ),
    )
