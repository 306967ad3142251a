"""The devices of this machine, as their drivers describe them."""

from __future__ import annotations

from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bitnet_core.errors import BackendUnavailableError
from bitnet_core.hal.device import DeviceInfo, DeviceType, TransferMode
from bitnet_core.hal.found import Handled

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
NVIDIA, DOT, SHUFFLE = "cl_nv_device_attribute_query", "cl_khr_integer_dot_product", "cl_khr_subgroup_shuffle"
OPTIONS = {DOT: "HAS_KHR_DOT", "cl_arm_integer_dot_product_accumulate_int8": "HAS_ARM_DOT", SHUFFLE: "HAS_SHUFFLE"}
"""What the dialect may use, by the extension that has it."""
SVM = {1 << 2: "fine-grain system", 1 << 1: "fine-grain buffer", 1 << 0: "coarse-grain buffer"}
"""Bits of CL_DEVICE_SVM_CAPABILITIES, the best first."""
_NO_DRIVER = "Install the vendor's OpenCL driver, or `pip install bitnet-opencl[pocl]` for one that runs on the CPU"


def usable() -> list[Handled]:
    """Every device with a compiler; BackendUnavailableError where there is none. One that is left out keeps its
    index."""
    try:
        import pyopencl as cl

        platforms = cl.get_platforms()
    except ImportError as exc:
        raise _unavailable(f"pyopencl cannot be imported: {exc}", "pip install pyopencl") from exc
    except cl.Error as exc:
        raise _unavailable("no OpenCL driver is installed") from exc
    found: list[cl.Device] = []
    for platform in platforms:
        with suppress(cl.Error):  # CL_DEVICE_NOT_FOUND: a driver without its hardware
            found += platform.get_devices()
    complete = [(index, one) for index, one in enumerate(found) if one.available and one.compiler_available]
    if not complete:
        raise _unavailable("no OpenCL driver has a device")
    return [Handled(device, describe(device, index)) for index, device in complete]


def _unavailable(reason: str, hint: str = _NO_DRIVER) -> BackendUnavailableError:
    return BackendUnavailableError(reason, backend="opencl", hint=hint)


def device_infos() -> list[DeviceInfo]:
    """Of all devices that are `usable`."""
    return [device.info for device in usable()]


def describe(device: cl.Device, index: int) -> DeviceInfo:
    """DeviceInfo of one device. What its extra has for tuning: units that compute, work-items of the largest group; of
    the smallest subgroups, where lanes shuffle; whether it takes NVIDIA's dialect, and its tensor cores' (ptx); groups
    that run at the same time, so that they may wait for each other (0 where that is not known)."""
    shared = query(device, "svm_capabilities", 0)
    unified = bool(query(device, "host_unified_memory", False))
    ptx = nvidia_capability(device) >= PTX
    units, group = device.max_compute_units, device.max_work_group_size
    wide = not has(device, SHUFFLE) or "amd" in device.vendor.lower()
    extra: dict[str, str | int] = {
        "opencl": device.version,
        "compute_units": units,
        "usm": usm_support(shared),
        "integer_dot_product": has(device, DOT),
        "subgroup_shuffle": has(device, SHUFFLE),
        "max_group": group,
        "lanes": 32 if wide else 8,
        "nvidia": nvidia_capability(device) >= DIALECT,
        "ptx": ptx,
        "members": units if ptx and group >= 512 else 0,
    }
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
        physical_id=physical_id(device),
        kernels=frozenset({"top_k"}) | (JOINED | SMALL_HEAD if ptx else frozenset()),
        features=frozenset({"timings", "tunings"}),
        extra=MappingProxyType(extra),
    )


def usm_support(capabilities: int) -> str:
    """The best kind of shared memory among these bits."""
    return next((name for bit, name in SVM.items() if capabilities & bit), "none")


def transfer_mode(capabilities: int, unified: bool) -> TransferMode:
    """Fine-grained memory of a device that works in the host's is used in place; everything else is copied."""
    in_place = unified and usm_support(capabilities).startswith("fine-grain")
    return TransferMode.UNIFIED if in_place else TransferMode.EXPLICIT_COPY


def has(device: cl.Device, extension: str) -> bool:
    """Whether its driver has an extension."""
    return extension in device.extensions.split()


def query(device: cl.Device, name: str, missing: Any) -> Any:
    """A device property, or `missing` where this driver does not know it."""
    import pyopencl as cl

    try:
        return getattr(device, name)
    except (cl.Error, AttributeError):
        return missing


def nvidia_capability(device: cl.Device) -> tuple[int, int]:
    """Compute capability of an NVIDIA GPU; (0, 0) for everything else."""
    if not has(device, NVIDIA):
        return 0, 0
    return query(device, "compute_capability_major_nv", 0), query(device, "compute_capability_minor_nv", 0)


def device_type(device: cl.Device, unified: bool) -> DeviceType:
    """GPUs by their memory; everything carried out by a CPU is software."""
    import pyopencl as cl

    software = any(word in device.name.lower() for word in ("llvmpipe", "swiftshader", "softpipe"))
    if software or device.type & cl.device_type.CPU:
        return DeviceType.SOFTWARE
    return DeviceType.INTEGRATED if unified else DeviceType.GPU


def physical_id(device: cl.Device) -> str:
    """PCI address as "domain:bus:device.function", or "" where the driver does not tell.

    cl_nv_device_attribute_query's slot is the number of the device, and an NVIDIA GPU is function 0 of it.
    """
    if has(device, NVIDIA):
        domain, bus, slot = (query(device, f"pci_{part}_id_nv", None) for part in ("domain", "bus", "slot"))
        if bus is not None and slot is not None:
            return f"{domain or 0:04x}:{bus:02x}:{slot:02x}.0"
    topology = query(device, "topology_amd", None)
    if topology is not None:
        return f"0000:{topology.bus & 0xFF:02x}:{topology.device:02x}.{topology.function}"
    return ""


def abilities(device: cl.Device) -> list[str]:
    """Build options: the language version and what the dialect may use on this device."""
    portable = nvidia_capability(device) < DIALECT
    modern = device.version.startswith("OpenCL 3") and portable and (has(device, DOT) or has(device, SHUFFLE))
    options = ["-cl-std=CL3.0" if modern else "-cl-std=CL1.2"]
    if query(device, "single_fp_config", 0) & CORRECTLY_ROUNDED_DIVIDE_SQRT:
        options.append("-cl-fp32-correctly-rounded-divide-sqrt")
    return options + [f"-D{macro}=1" for name, macro in OPTIONS.items() if portable and has(device, name)]
