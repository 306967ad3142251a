"""Enumeration of OpenCL devices: DeviceInfo from the properties that the drivers report."""

from __future__ import annotations

from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bitnet_hal.discovery.known import install_command
from bitnet_hal.errors import BackendUnavailableError
from bitnet_hal.kernels.catalogue import UNFUSED_KERNELS
from bitnet_hal.plugin import FEW_ROWS, DeviceInfo, DeviceType, EnumeratedDevice, TransferMode, pci_address, table

if TYPE_CHECKING:
    import pyopencl as cl

ALIGNMENT = 16
"""The alignment of views in bytes: kernels load 16 at a time.

A kernel adds the offset of a view itself, so CL_DEVICE_MEM_BASE_ADDR_ALIGN, which applies to sub-buffers, is unused.
"""
DIALECT = (6, 1)
"""The lowest compute capability with the instructions of nvidia/dialect.clh."""
PTX = (8, 0)
"""The lowest compute capability with the tensor-core instructions of nvidia/*.cl."""
CORRECTLY_ROUNDED_DIVIDE_SQRT = 1 << 7
"""A bit of CL_DEVICE_SINGLE_FP_CONFIG."""
LAYER_GROUP = 512
"""Work-items per group of decoder_layer."""
NVIDIA = "cl_nv_device_attribute_query"
KNOWN = table(__file__, "devices.toml")
_NO_DRIVER = (
    f"Install the vendor's OpenCL driver, or `{install_command('bitnet-opencl[pocl]')}` for one that runs on the CPU"
)


def usable() -> list[EnumeratedDevice]:
    """Return the devices that have a compiler, with their index among all devices.

    Raises BackendUnavailableError if there is none.
    """
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
    devices = [
        EnumeratedDevice(device, describe(device, index))
        for index, device in enumerate(found)
        if device.available and device.compiler_available
    ]
    if not devices:
        raise _unavailable("no OpenCL driver has a device")
    return devices


def _unavailable(reason: str, hint: str = _NO_DRIVER) -> BackendUnavailableError:
    return BackendUnavailableError(reason, backend="opencl", hint=hint)


def describe(device: cl.Device, index: int) -> DeviceInfo:
    """Return the DeviceInfo of one device."""
    svm = query(device, "svm_capabilities", 0)
    unified = bool(query(device, "host_unified_memory", False))
    extra = _extra(device, svm)
    features = {"timings", "tunings", "replay-many", "kernel-resources"}
    if extra["ptx"]:
        features.add("lm-head-int8")
    return DeviceInfo(
        backend="opencl",
        index=index,
        name=" ".join(device.name.split()),
        type=device_type(device, unified),
        driver=f"{device.platform.name} {device.driver_version}",
        alignment=ALIGNMENT,
        transfer=transfer_mode(svm, unified),
        physical_id=physical_id(device),
        batch_invariant_rows=dict.fromkeys(UNFUSED_KERNELS, FEW_ROWS),
        vendor=device.vendor,
        total_memory=device.global_mem_size,
        max_allocation=device.max_mem_alloc_size,
        max_binding=device.max_mem_alloc_size,
        kernels=frozenset(name for name, ability in KNOWN["kernels"].items() if not ability or extra[ability]),
        features=frozenset(features),
        extra=MappingProxyType(extra),
    )


def _extra(device: cl.Device, svm: int) -> dict[str, Any]:
    """Return DeviceInfo.extra.

    lanes: neighbouring work-items that certainly belong to one subgroup. nvidia: the device compiles NVIDIA's dialect.
    ptx: it also has the tensor cores of compute capability 8.0. members: work-groups that run at the same time, so that
    they may wait for each other; 0 if unknown.
    """
    found = extensions(device)
    capability = nvidia_capability(device)
    compute_units = device.max_compute_units
    max_group = device.max_work_group_size
    ptx = capability >= PTX
    small_subgroups = found["subgroup_shuffle"] and "amd" not in device.vendor.lower()
    return {
        "opencl": device.version,
        "compute_units": compute_units,
        "max_group": max_group,
        **found,
        "usm": usm_support(svm),
        "lanes": 8 if small_subgroups else 32,
        "nvidia": capability >= DIALECT,
        "ptx": ptx,
        "members": compute_units if ptx and max_group >= LAYER_GROUP else 0,
    }


def extensions(device: cl.Device) -> dict[str, bool]:
    """Return whether the device has each extension of devices.toml, by its key in DeviceInfo.extra."""
    return {key: name in device.extensions.split() for key, name in KNOWN["extensions"].items()}


def usm_support(capabilities: int) -> str:
    """Return the best kind of shared memory among these bits of CL_DEVICE_SVM_CAPABILITIES."""
    return next((name for bit, name in KNOWN["svm"].items() if capabilities & int(bit)), "none")


def transfer_mode(capabilities: int, unified: bool) -> TransferMode:
    """Return UNIFIED for a device that uses the host's memory and reports fine-grained shared memory."""
    in_place = unified and usm_support(capabilities).startswith("fine-grain")
    return TransferMode.UNIFIED if in_place else TransferMode.EXPLICIT_COPY


def query(device: cl.Device, name: str, missing: Any) -> Any:
    """Return a property of a device, `missing` if its driver does not know the property."""
    import pyopencl as cl

    try:
        return getattr(device, name)
    except (cl.Error, AttributeError):
        return missing


def nvidia_capability(device: cl.Device) -> tuple[int, int]:
    """Return the compute capability of an NVIDIA GPU, (0, 0) for any other device."""
    if NVIDIA not in device.extensions:
        return 0, 0
    return query(device, "compute_capability_major_nv", 0), query(device, "compute_capability_minor_nv", 0)


def device_type(device: cl.Device, unified: bool) -> DeviceType:
    """Return SOFTWARE for a device that runs on a CPU, else INTEGRATED or GPU by its memory."""
    import pyopencl as cl

    software = any(word in device.name.lower() for word in KNOWN["software"]["names"])
    if software or device.type & cl.device_type.CPU:
        return DeviceType.SOFTWARE
    return DeviceType.INTEGRATED if unified else DeviceType.GPU


def physical_id(device: cl.Device) -> str:
    """Return the PCI address as "domain:bus:device.function", "" if it is unknown.

    The slot of cl_nv_device_attribute_query is the PCI device number; an NVIDIA GPU is function 0 of it.
    """
    if NVIDIA in device.extensions:
        domain = query(device, "pci_domain_id_nv", None)
        bus = query(device, "pci_bus_id_nv", None)
        slot = query(device, "pci_slot_id_nv", None)
        if bus is not None and slot is not None:
            return pci_address(domain or 0, bus, slot)
    topology = query(device, "topology_amd", None)
    if topology is not None:
        return pci_address(0, topology.bus & 0xFF, topology.device, topology.function)
    return ""


def abilities(device: cl.Device) -> list[str]:
    """Return the build options: the language version and the extensions that dialect.clh may use.

    Without warnings, which PoCL counts on the user's stderr for each program.
    """
    usable_extensions = extensions(device) if nvidia_capability(device) < DIALECT else {}
    khronos = usable_extensions.get("integer_dot_product") or usable_extensions.get("subgroup_shuffle")
    standard = "CL3.0" if khronos and device.version.startswith("OpenCL 3") else "CL1.2"
    options = ["-w", f"-cl-std={standard}"]
    if query(device, "single_fp_config", 0) & CORRECTLY_ROUNDED_DIVIDE_SQRT:
        options.append("-cl-fp32-correctly-rounded-divide-sqrt")
    return options + [KNOWN["options"][key] for key, present in usable_extensions.items() if present]
