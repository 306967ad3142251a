"""Enumeration of the physical devices that can be used, with their DeviceInfo."""

from __future__ import annotations

from typing import Any

from bitnet_hal.errors import BackendUnavailableError
from bitnet_hal.kernels.catalogue import UNFUSED_KERNELS
from bitnet_hal.plugin import (
    FEW_ROWS,
    DeviceInfo,
    DeviceType,
    EnumeratedDevice,
    Handle,
    TransferMode,
    failure,
    filter_devices,
    pci_address,
    table,
)

from bitnet_vulkan.abilities import abilities
from bitnet_vulkan.driver import BACKEND
from bitnet_vulkan.properties import LIST_DEVICES, PCI_BUS_INFO, PUSH_DESCRIPTOR, physical_devices, query_properties

KNOWN = table(__file__, "devices.toml")
MIN_ALIGNMENT = 64
"""The minimum alignment of views in bytes."""


def usable() -> list[EnumeratedDevice]:
    """Return the devices that can be used, with their index among all devices.

    Raises BackendUnavailableError with the reasons if there is none.
    """
    found, reasons = filter_devices(physical_devices(), BACKEND, _described)
    if not found:
        said = "; ".join(["no Vulkan device can be used", *reasons])
        hint = "Install a Vulkan driver (Debian: mesa-vulkan-drivers, or the GPU vendor's)"
        raise failure(BackendUnavailableError, LIST_DEVICES, backend=BACKEND, said=said, hint=hint)
    return found


def offered(section: str, able: dict[str, Any]) -> frozenset[str]:
    """Return the optional kernels or the features (`section` of devices.toml) of a device with these abilities."""
    return frozenset(name for name, ability in KNOWN[section].items() if not ability or able[ability])


def _described(handle: Handle, index: int) -> EnumeratedDevice | str:
    about = query_properties(handle)
    if missing := _missing(about):
        return f"vulkan:{index} {about['deviceName']} has no {' and no '.join(missing)}"
    return EnumeratedDevice(handle, _info(handle, index, about))


def _missing(about: dict[str, Any]) -> list[str]:
    """Return the names of the required properties that a device lacks."""
    required = {
        "name": about["deviceName"],
        "compute queue": about["families"],
        "device memory": about["heaps"],
        PUSH_DESCRIPTOR: PUSH_DESCRIPTOR in about["extensions"],
    }
    return [name for name, present in required.items() if not present]


def _info(handle: Handle, index: int, about: dict[str, Any]) -> DeviceInfo:
    able = abilities(handle, about)
    kind = DeviceType(KNOWN["types"].get(str(about["deviceType"]), "gpu"))
    vendor_id = f"{about['vendorID']:04x}"
    driver = f"{about['driverName']} {about['driverInfo']}".strip()
    in_place = able["import"] and kind is not DeviceType.GPU
    return DeviceInfo(
        backend=BACKEND,
        index=index,
        name=about["deviceName"],
        type=kind,
        vendor=KNOWN["vendors"].get(vendor_id, f"0x{vendor_id}"),
        driver=driver or f"driver {about['driverVersion']}",
        total_memory=max(size for size, *_ in about["heaps"]),
        max_allocation=about["maxMemoryAllocationSize"],
        max_binding=about["maxStorageBufferRange"],
        max_grid=tuple(about["maxComputeWorkGroupCount"]),
        alignment=max(MIN_ALIGNMENT, about["minStorageBufferOffsetAlignment"]),
        transfer=TransferMode.UNIFIED if in_place else TransferMode.EXPLICIT_COPY,
        physical_id=_physical_id(about),
        kernels=offered("kernels", able),
        features=offered("features", {**about, **able}),
        batch_invariant_rows=dict.fromkeys(UNFUSED_KERNELS, FEW_ROWS),
        extra=_extra(about, able),
    )


def _extra(about: dict[str, Any], able: dict[str, int]) -> dict[str, Any]:
    version = about["apiVersion"]
    return {
        **able,
        "shared_memory": about["maxComputeSharedMemorySize"],
        "max_allocations": about["maxMemoryAllocationCount"],
        "tick_ns": about["timestampPeriod"],
        "uuid": _uuid(about),
        "api_version": f"{version >> 22}.{(version >> 12) & 1023}.{version & 4095}",
        "pipeline_cache": bytes(about["pipelineCacheUUID"]).hex(),
        "queue_family": about["families"][0],
    }


def _uuid(about: dict[str, Any]) -> str:
    return bytes(about["deviceUUID"]).hex()


def _physical_id(about: dict[str, Any]) -> str:
    """Return the PCI address, or the UUID if the driver does not report one."""
    if PCI_BUS_INFO not in about["extensions"]:
        return _uuid(about)
    return pci_address(about["pciDomain"], about["pciBus"], about["pciDevice"], about["pciFunction"])
