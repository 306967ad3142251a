"""The devices of this machine, as their drivers describe them."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from bitnet_core.errors import BackendUnavailableError
from bitnet_core.hal.device import DeviceInfo, DeviceType, TransferMode

from bitnet_opencl.clc.tuning import Profile

if TYPE_CHECKING:
    import pyopencl as cl

ALIGNMENT = 16
"""Bytes: kernels load 16 at a time. Views are an offset that the kernel adds, so CL_DEVICE_MEM_BASE_ADDR_ALIGN, which
holds for sub-buffers, does not matter."""
JOINED = frozenset({"norm_matmul", "norm_matmul_glu", "rope_attention", "decoder_layer"})
"""Kernels that do the work of several, to save launches. Offered where that was measured: by NVIDIA's driver."""
SMALL_HEAD = frozenset({"pack_head", "draft_logits", "rescore_logits"})
DIALECT, PTX = (6, 1), (8, 0)
"""Least compute capability of the NVIDIA GPUs that have what nvidia/dialect.clh names, and what nvidia/*.cl does."""
CORRECTLY_ROUNDED_DIVIDE_SQRT = 1 << 7
"""Of CL_DEVICE_SINGLE_FP_CONFIG."""
_NO_DRIVER = "Install the vendor's OpenCL driver, or `pip install bitnet-opencl[pocl]` for one that runs on the CPU"


class Found(NamedTuple):
    """A driver's device with its description."""

    device: cl.Device
    info: DeviceInfo


def find_devices() -> list[Found]:
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
            found += platform.get_devices()
        except cl.Error:  # CL_DEVICE_NOT_FOUND: a driver without its hardware
            continue
    usable = [pair for pair in enumerate(found) if pair[1].available and pair[1].compiler_available]
    if not usable:
        raise BackendUnavailableError("no OpenCL driver has a device", backend="opencl", hint=_NO_DRIVER)
    return [Found(device, describe(device, index)) for index, device in usable]


def device_infos() -> list[DeviceInfo]:
    """Of all that `find_devices` finds."""
    return [found.info for found in find_devices()]


def describe(device: cl.Device, index: int) -> DeviceInfo:
    """DeviceInfo of one device."""
    shared = query(device, "svm_capabilities", 0)
    unified = bool(query(device, "host_unified_memory", False))
    extensions = device.extensions.split()
    measured = nvidia_capability(device, extensions) >= PTX
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
        transfer=transfer_mode(shared, unified),
        physical_id=physical_id(device, extensions),
        kernels=frozenset({"top_k"}) | (JOINED | SMALL_HEAD if measured else frozenset()),
        features=frozenset({"timings", "tunings"}) | ({"small-head"} if measured else frozenset()),
        extra=MappingProxyType(
            {
                "opencl": device.version,
                "compute_units": device.max_compute_units,
                "usm": usm_support(shared),
                "integer_dot_product": "cl_khr_integer_dot_product" in extensions,
                "subgroup_shuffle": "cl_khr_subgroup_shuffle" in extensions,
            }
        ),
    )


SVM = {1 << 2: "fine-grain system", 1 << 1: "fine-grain buffer", 1 << 0: "coarse-grain buffer"}
"""Bits of CL_DEVICE_SVM_CAPABILITIES, the best first."""


def usm_support(capabilities: int) -> str:
    """The best kind of shared memory among these bits."""
    return next((name for bit, name in SVM.items() if capabilities & bit), "none")


def transfer_mode(capabilities: int, unified: bool) -> TransferMode:
    """Fine-grained memory of a device that works in the host's is used in place; everything else is copied."""
    in_place = unified and usm_support(capabilities).startswith("fine-grain")
    return TransferMode.UNIFIED if in_place else TransferMode.EXPLICIT_COPY


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
    """PCI address as "domain:bus:device.function", or "" where the driver does not tell.

    cl_nv_device_attribute_query's slot is the number of the device, and an NVIDIA GPU is function 0 of it.
    """
    if "cl_nv_device_attribute_query" in extensions:
        domain = query(device, "pci_domain_id_nv", 0)
        bus, slot = query(device, "pci_bus_id_nv", None), query(device, "pci_slot_id_nv", None)
        if bus is not None and slot is not None:
            return f"{domain:04x}:{bus:02x}:{slot:02x}.0"
    topology = query(device, "topology_amd", None)
    if topology is not None:
        return f"0000:{topology.bus & 0xFF:02x}:{topology.device:02x}.{topology.function}"
    return ""


def abilities(device: cl.Device) -> list[str]:
    """Build options: the language version and what the dialect may use on this device."""
    extensions = device.extensions.split()
    rounded = query(device, "single_fp_config", 0) & CORRECTLY_ROUNDED_DIVIDE_SQRT
    options = ["-cl-fp32-correctly-rounded-divide-sqrt"] if rounded else []
    offered = []
    if "cl_khr_integer_dot_product" in extensions:
        offered.append("-DHAS_KHR_DOT=1")
    elif "cl_arm_integer_dot_product_accumulate_int8" in extensions:
        offered.append("-DHAS_ARM_DOT=1")
    if "cl_khr_subgroup_shuffle" in extensions:
        offered.append("-DHAS_SHUFFLE=1")
    if nvidia_capability(device, extensions) >= DIALECT:
        offered = []
    modern = device.version.startswith("OpenCL 3") and ("-DHAS_KHR_DOT=1" in offered or "-DHAS_SHUFFLE=1" in offered)
    return ["-cl-std=CL3.0" if modern else "-cl-std=CL1.2", *options, *offered]


def default_profile(device: cl.Device, info: DeviceInfo) -> Profile:
    """The tuning class of a device; with shuffles, only as many lanes as its smallest subgroups have."""
    extensions = device.extensions.split()
    wide = "cl_khr_subgroup_shuffle" not in extensions or "amd" in device.vendor.lower()
    capability = nvidia_capability(device, extensions)
    ptx = capability >= PTX
    return Profile(
        cpu=info.type is DeviceType.SOFTWARE,
        max_group=device.max_work_group_size,
        lanes=32 if wide else 8,
        units=device.max_compute_units,
        nvidia=capability >= DIALECT,
        ptx=ptx,
        members=device.max_compute_units if ptx and device.max_work_group_size >= 512 else 0,
    )
