"""The devices of this machine, as their drivers describe them."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bitnet_core.errors import BackendUnavailableError
from bitnet_core.hal.device import DeviceInfo, DeviceType, TransferMode

if TYPE_CHECKING:
    import pyopencl as cl

ALIGNMENT = 16
"""Bytes: kernels load 16 at a time. Views are an offset that the kernel adds, so CL_DEVICE_MEM_BASE_ADDR_ALIGN, which
holds for sub-buffers, does not matter."""
JOINED = frozenset({"norm_matmul", "norm_matmul_glu", "rope_attention"})
"""Kernels that do the work of several, to save launches. Offered where that was measured: by NVIDIA's driver."""
_NO_DRIVER = "Install the vendor's OpenCL driver, or `pip install bitnet-opencl[pocl]` for one that runs on the CPU"


def list_devices() -> list[tuple[cl.Device, DeviceInfo]]:
    """Every device with a compiler, with its description; BackendUnavailableError where there is none."""
    try:
        import pyopencl as cl
    except ImportError as exc:
        raise BackendUnavailableError(
            f"pyopencl cannot be imported: {exc}", backend="opencl", hint="pip install pyopencl"
        ) from exc
    try:
        platforms = cl.get_platforms()
    except cl.Error as exc:
        raise BackendUnavailableError("no OpenCL driver is installed", backend="opencl", hint=_NO_DRIVER) from exc
    found: list[cl.Device] = []
    for platform in platforms:
        try:
            found += [device for device in platform.get_devices() if device.available and device.compiler_available]
        except cl.Error:  # CL_DEVICE_NOT_FOUND: a driver without its hardware
            continue
    if not found:
        raise BackendUnavailableError("no OpenCL driver has a device", backend="opencl", hint=_NO_DRIVER)
    return [(device, describe(device, index)) for index, device in enumerate(found)]


def describe(device: cl.Device, index: int) -> DeviceInfo:
    """DeviceInfo of one device."""
    from bitnet_opencl.memory import detect_usm_capabilities

    support = detect_usm_capabilities(query(device, "svm_capabilities", 0))
    unified = bool(query(device, "host_unified_memory", False))
    extensions = device.extensions.split()
    return DeviceInfo(
        backend="opencl",
        index=index,
        name=" ".join(device.name.split()),
        type=device_type(device, unified),
        vendor=device.vendor,
        driver=f"{device.platform.name} {device.driver_version}",
        total_memory=device.global_mem_size,
        max_allocation=device.max_mem_alloc_size,
        max_binding=device.max_mem_alloc_size,
        alignment=ALIGNMENT,
        transfer=support.transfer if unified else TransferMode.EXPLICIT_COPY,
        physical_id=physical_id(device, extensions),
        kernels=frozenset({"top_k"}) | (JOINED if nvidia_capability(device, extensions) >= (8, 0) else frozenset()),
        features=frozenset({"timings"}),
        extra=MappingProxyType(
            {
                "opencl": device.version,
                "compute_units": device.max_compute_units,
                "usm": support.value,
                "integer_dot_product": "cl_khr_integer_dot_product" in extensions,
                "subgroup_shuffle": "cl_khr_subgroup_shuffle" in extensions,
            }
        ),
    )


def query(device: cl.Device, name: str, missing: Any) -> Any:
    """A device property, or `missing` where this driver does not know it."""
    import pyopencl as cl

    try:
        return getattr(device, name)
    except (cl.Error, AttributeError):
        return missing


def nvidia_capability(device: cl.Device, extensions: list[str]) -> tuple[int, int]:
    """Compute capability of an NVIDIA GPU; (0, 0) for everything else."""
    if "cl_nv_device_attribute_query" not in extensions:
        return 0, 0
    return query(device, "compute_capability_major_nv", 0), query(device, "compute_capability_minor_nv", 0)


def device_type(device: cl.Device, unified: bool) -> DeviceType:
    """GPUs by their memory; everything carried out by a CPU is software."""
    import pyopencl as cl

    software = any(word in device.name.lower() for word in ("llvmpipe", "swiftshader", "softpipe"))
    if software or device.type & cl.device_type.CPU:
        return DeviceType.SOFTWARE
    return DeviceType.INTEGRATED if unified else DeviceType.GPU


def physical_id(device: cl.Device, extensions: list[str]) -> str:
    """PCI address as "domain:bus:device.function", or "" where the driver does not tell."""
    if "cl_nv_device_attribute_query" in extensions:
        domain = query(device, "pci_domain_id_nv", 0)
        bus, slot = query(device, "pci_bus_id_nv", None), query(device, "pci_slot_id_nv", None)
        if bus is not None and slot is not None:
            return f"{domain:04x}:{bus:02x}:{slot >> 3:02x}.{slot & 7}"
    topology = query(device, "topology_amd", None)
    if topology is not None:
        return f"0000:{topology.bus & 0xFF:02x}:{topology.device:02x}.{topology.function}"
    return ""
