"""Enumeration of Level Zero GPUs and their tiles, with the reason if there is none."""

from __future__ import annotations

import glob
import os
import sys
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from bitnet_hal.errors import BackendUnavailableError, GpuError
from bitnet_hal.kernels.catalogue import DELTA_KERNELS, ROTATED_KERNELS, UNFUSED_KERNELS
from bitnet_hal.plugin import FEW_ROWS, DeviceInfo, DeviceType, Handle, TransferMode, filter_devices, pci_address

from bitnet_levelzero import api
from bitnet_levelzero.api import given, listed
from bitnet_levelzero.errors import BACKEND, UNINITIALIZED, check
from bitnet_levelzero.tuning import architecture

MIN_API = (1, 3)
MIN_SPIRV = (1, 2)
ALIGNMENT = 16
"""The alignment of views in bytes: kernels load 16 at a time."""
GPU = 1  # ze_device_type_t
INTEGRATED = 1  # ze_device_property_flag_t
SUBDEVICE = 2
COMPUTE = 1  # ze_command_queue_group_property_flag_t
SYSTEM_ACCESS = 1  # ze_memory_access_cap_flag_t
INTEL = 0x8086
"""PCI vendor."""
NODES = "/dev/dri/renderD*"
_DRIVER = "Install Intel's GPU driver"
_HOW = {
    "linux": f"{_DRIVER}: the packages level-zero (or libze1) and intel-level-zero-gpu (or libze-intel-gpu1)",
    "win32": f"{_DRIVER} from intel.com; it brings ze_loader.dll",
}


@dataclass(frozen=True, slots=True)
class LevelZeroGpu:
    """A device with its driver.

    card: the whole GPU. tile: number of the tile, -1 for a whole GPU. ordinal: the queue group that computes.
    """

    driver: Handle
    card: Handle
    device: Handle
    tile: int
    ordinal: int
    info: DeviceInfo


def usable() -> list[LevelZeroGpu]:
    """Return the GPUs of all drivers that are recent enough, each followed by its tiles if it has several.

    Raises BackendUnavailableError with the reason if there is none.
    """
    _initialise()
    devices: list[tuple[Handle, Handle, Handle]] = []
    for driver in listed("zeDriverGet"):
        for card in listed("zeDeviceGet", driver):
            for device in (card, *listed("zeDeviceGetSubDevices", card)):
                devices.append((driver, card, device))
    found, reasons = filter_devices(devices, BACKEND, lambda device, index: describe(*device, index))
    if not found:
        raise _unavailable("; ".join(reasons) or "no Level Zero driver has a GPU")
    return found


def _initialise() -> None:
    try:
        result = api.load().lib.zeInit(0)
    except OSError as exc:
        raise _unavailable("the Level Zero loader is not installed") from exc
    if result == UNINITIALIZED:
        raise _unavailable("the Level Zero loader found no driver with a GPU", f"0x{result:08x}")
    check(result, "zeInit")


def _unavailable(reason: str, code: str = "") -> BackendUnavailableError:
    hint = _HOW.get(sys.platform, f"{_DRIVER}; it exists for Linux and Windows")
    if node := next((node for node in glob.glob(NODES) if not os.access(node, os.R_OK | os.W_OK)), ""):
        reason = f"{reason}, and {node} may not be opened"
        hint = "Join the group that owns it: sudo usermod -aG render $USER, then log in again"
    return BackendUnavailableError(reason, backend=BACKEND, operation="zeInit", code=code, hint=hint)


def describe(driver: Handle, card: Handle, device: Handle, index: int) -> LevelZeroGpu | None:
    """Return a device with its DeviceInfo, None if it is not a GPU.

    Raises BackendUnavailableError if its driver is too old.
    """
    about = given("zeDeviceGetProperties", device)
    if about["type"] != GPU:
        return None
    spirv = given("zeDeviceGetModuleProperties", device)["spirvVersionSupported"]
    compute = given("zeDeviceGetComputeProperties", device)
    version = given("zeDriverGetApiVersion", driver)
    name = about["name"] or f"Intel GPU {about['deviceId']:04x}"
    _check_version(name, "Level Zero", version, MIN_API)
    _check_version(name, "SPIR-V", spirv, MIN_SPIRV)
    tile = about["subdeviceId"] if about["flags"] & SUBDEVICE else -1
    integrated = bool(about["flags"] & INTEGRATED)
    release = given("zeDriverGetProperties", driver)["driverVersion"]
    info = DeviceInfo(
        backend=BACKEND,
        index=index,
        name=f"{name}, tile {tile}" if tile >= 0 else name,
        type=DeviceType.INTEGRATED if integrated else DeviceType.GPU,
        vendor="Intel" if about["vendorId"] == INTEL else f"{about['vendorId']:04x}",
        driver=f"Level Zero {'.'.join(map(str, _pair(version)))}, driver {release}",
        total_memory=sum(memory["totalSize"] for memory in listed("zeDeviceGetMemoryProperties", device)),
        max_allocation=about["maxMemAllocSize"],
        max_binding=about["maxMemAllocSize"],
        max_grid=tuple(compute[f"maxGroupCount{axis}"] for axis in "XYZ"),
        alignment=ALIGNMENT,
        transfer=TransferMode.UNIFIED if integrated else TransferMode.EXPLICIT_COPY,
        physical_id=physical_id(card),
        kernels=DELTA_KERNELS | ROTATED_KERNELS | {"top_k"},
        features=frozenset({"timings", "tunings", "replay-many", "sensors", "kernel-resources"}),
        batch_invariant_rows=dict.fromkeys(UNFUSED_KERNELS, FEW_ROWS),
        extra=MappingProxyType(_extra(device, about, compute)),
    )
    return LevelZeroGpu(driver, card, device, tile, _compute_queue_group(device), info)


def _extra(device: Handle, about: dict[str, Any], compute: dict[str, Any]) -> dict[str, Any]:
    """Return DeviceInfo.extra. about, compute: the properties of the device and of its compute units."""
    family = architecture(about["deviceId"])
    access = given("zeDeviceGetMemoryAccessProperties", device)["sharedSystemAllocCapabilities"]
    subgroup_sizes = compute["subGroupSizes"][: compute["numSubGroupSizes"]]
    return {
        "uuid": bytes(about["uuid"]["id"]).hex(),
        "architecture": family.get("name", "unknown"),
        "dpas": "present, not used yet" if family.get("dpas") else "none known",
        "tiles": max(1, len(listed("zeDeviceGetSubDevices", device))),
        "compute_units": about["numSlices"] * about["numSubslicesPerSlice"] * about["numEUsPerSubslice"],
        "subgroups": " ".join(map(str, subgroup_sizes)),
        "local_memory": compute["maxSharedLocalMemory"],
        "tick_ns": about["timerResolution"],
        "tick_bits": about["kernelTimestampValidBits"],
        "system_memory": bool(about["flags"] & INTEGRATED) and bool(access & SYSTEM_ACCESS),
    }


def _compute_queue_group(device: Handle) -> int:
    groups = listed("zeDeviceGetCommandQueueGroupProperties", device)
    return next(ordinal for ordinal, group in enumerate(groups) if group["flags"] & COMPUTE)


def _pair(version: int) -> tuple[int, int]:
    return version >> 16, version & 0xFFFF


def _check_version(device: str, what: str, version: int, needed: tuple[int, int]) -> None:
    if _pair(version) < needed:
        present = ".".join(map(str, _pair(version)))
        required = ".".join(map(str, needed))
        said = f"the driver is too old: it has {what} {present}, and {required} is needed"
        hint = "Update Intel's GPU driver"
        raise BackendUnavailableError(said, backend=BACKEND, device=device, operation="devices", hint=hint)


def physical_id(card: Handle) -> str:
    """Return the PCI address as "domain:bus:device.function", "" if it is unknown."""
    try:
        address = given("zeDevicePciGetPropertiesExt", card)["address"]
    except (GpuError, AttributeError):  # an old driver, an old loader
        return ""
    return pci_address(**address)
