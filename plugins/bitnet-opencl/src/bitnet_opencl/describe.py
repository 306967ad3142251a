"""The devices of this machine, as their drivers describe them."""

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
"""Bytes: kernels load 16 at a time. Views are an offset that the kernel adds, so CL_DEVICE_MEM_BASE_ADDR_ALIGN, which
holds for sub-buffers, does not matter."""
DIALECT, PTX = (6, 1), (8, 0)
"""Least compute capability of the NVIDIA GPUs that have what nvidia/dialect.clh names, and what nvidia/*.cl does."""
CORRECTLY_ROUNDED_DIVIDE_SQRT = 1 << 7
"""Of CL_DEVICE_SINGLE_FP_CONFIG."""
NVIDIA = "cl_nv_device_attribute_query"
KNOWN = table(__file__, "devices.toml")
_NO_DRIVER = (
    f"Install the vendor's OpenCL driver, or `{install_command('bitnet-opencl[pocl]')}` for one that runs on the CPU"
)


def usable() -> list[EnumeratedDevice]:
    """Devices with a compiler; BackendUnavailableError if there are none. One that is left out keeps its index."""
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
    return [EnumeratedDevice(device, describe(device, index)) for index, device in complete]


def _unavailable(reason: str, hint: str = _NO_DRIVER) -> BackendUnavailableError:
    return BackendUnavailableError(reason, backend="opencl", hint=hint)


def describe(device: cl.Device, index: int) -> DeviceInfo:
    """DeviceInfo of one device. In its extra, lanes: work-items that surely sit in one subgroup, side by side; nvidia:
    it takes NVIDIA's dialect; ptx: with the tensor cores of compute capability 8.0; members: groups that run at the
    same time, so that they may wait for each other, 0 where that is not known."""
    shared = query(device, "svm_capabilities", 0)
    unified = bool(query(device, "host_unified_memory", False))
    able: dict[str, Any] = {key: getattr(device, name) for key, name in KNOWN["extra"].items()} | extensions(device)
    able["usm"] = usm_support(shared)
    able["lanes"] = 32 if not able["subgroup_shuffle"] or "amd" in device.vendor.lower() else 8
    able["nvidia"], able["ptx"] = (nvidia_capability(device) >= least for least in (DIALECT, PTX))
    able["members"] = able["compute_units"] if able["ptx"] and able["max_group"] >= 512 else 0
    return DeviceInfo(
        backend="opencl",
        index=index,
        name=" ".join(device.name.split()),
        type=device_type(device, unified),
        driver=f"{device.platform.name} {device.driver_version}",
        alignment=ALIGNMENT,
        transfer=transfer_mode(shared, unified),
        physical_id=physical_id(device),
        kernels=frozenset(name for name, needs in KNOWN["kernels"].items() if not needs or able[needs]),
        features=frozenset({"timings", "tunings", "lm-head-int8"} if able["ptx"] else {"timings", "tunings"}),
        batch_invariant_rows=dict.fromkeys(UNFUSED_KERNELS, FEW_ROWS),
        extra=MappingProxyType(able),
        **{field: getattr(device, name) for field, name in KNOWN["info"].items()},
    )


def extensions(device: cl.Device) -> dict[str, bool]:
    """Those that matter, by their keys in DeviceInfo.extra."""
    return {key: name in device.extensions.split() for key, name in KNOWN["extensions"].items()}


def usm_support(capabilities: int) -> str:
    """The best kind of shared memory among these bits."""
    return next((name for bit, name in KNOWN["svm"].items() if capabilities & int(bit)), "none")


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


def nvidia_capability(device: cl.Device) -> tuple[int, int]:
    """Compute capability of an NVIDIA GPU; (0, 0) for everything else."""
    if NVIDIA not in device.extensions:
        return 0, 0
    return query(device, "compute_capability_major_nv", 0), query(device, "compute_capability_minor_nv", 0)


def device_type(device: cl.Device, unified: bool) -> DeviceType:
    """GPUs by their memory; everything carried out by a CPU is software."""
    import pyopencl as cl

    software = any(word in device.name.lower() for word in KNOWN["software"]["names"])
    if software or device.type & cl.device_type.CPU:
        return DeviceType.SOFTWARE
    return DeviceType.INTEGRATED if unified else DeviceType.GPU


def physical_id(device: cl.Device) -> str:
    """PCI address as "domain:bus:device.function", or "" where the driver does not tell.

    cl_nv_device_attribute_query's slot is the number of the device, and an NVIDIA GPU is function 0 of it.
    """
    if NVIDIA in device.extensions:
        domain, bus, slot = (query(device, f"pci_{part}_id_nv", None) for part in ("domain", "bus", "slot"))
        if bus is not None and slot is not None:
            return pci_address(domain or 0, bus, slot)
    topology = query(device, "topology_amd", None)
    if topology is not None:
        return pci_address(0, topology.bus & 0xFF, topology.device, topology.function)
    return ""


def abilities(device: cl.Device) -> list[str]:
    """Build options: the language version and what the dialect may use on this device."""
    offered = extensions(device) if nvidia_capability(device) < DIALECT else {}
    khronos = offered.get("integer_dot_product") or offered.get("subgroup_shuffle")
    options = ["-cl-std=CL3.0" if khronos and device.version.startswith("OpenCL 3") else "-cl-std=CL1.2"]
    if query(device, "single_fp_config", 0) & CORRECTLY_ROUNDED_DIVIDE_SQRT:
        options.append("-cl-fp32-correctly-rounded-divide-sqrt")
    return options + [KNOWN["options"][key] for key, there in offered.items() if there]
