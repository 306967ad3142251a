"""The devices of this machine, as their drivers describe them, and why there is none."""

from __future__ import annotations

import glob
import os
import sys
from dataclasses import dataclass
from types import MappingProxyType

from bitnet_hal.errors import BackendUnavailableError, GpuError
from bitnet_hal.kernels.catalogue import DELTA_KERNELS, ROTATED_KERNELS, UNFUSED_KERNELS
from bitnet_hal.plugin import FEW_ROWS, DeviceInfo, DeviceType, Handle, TransferMode, filter_devices, pci_address

from bitnet_levelzero import api
from bitnet_levelzero.api import given, listed
from bitnet_levelzero.errors import BACKEND, UNINITIALIZED, check
from bitnet_levelzero.tuning import architecture

LEAST_API, LEAST_SPIRV = (1, 3), (1, 2)
ALIGNMENT = 16
"""Bytes: kernels load 16 at a time."""
GPU, INTEGRATED, SUBDEVICE, COMPUTE, SYSTEM_ACCESS = 1, 1, 2, 1, 1
"""A type of devices, two flags of theirs, one of a command queue group, one of shared system allocations."""
NODES = "/dev/dri/renderD*"
_DRIVER = "Install Intel's GPU driver"
_HOW = {
    "linux": f"{_DRIVER}: the packages level-zero (or libze1) and intel-level-zero-gpu (or libze-intel-gpu1)",
    "win32": f"{_DRIVER} from intel.com; it brings ze_loader.dll",
}


@dataclass(frozen=True, slots=True)
class LevelZeroGpu:
    """A device with its driver. card: the whole GPU, where the device is a tile (-1: it is none) of it; ordinal: the
    group of its queues that compute."""

    driver: Handle
    card: Handle
    device: Handle
    tile: int
    ordinal: int
    info: DeviceInfo


def usable() -> list[LevelZeroGpu]:
    """Every GPU of every driver that is new enough, and behind it its tiles where it has several;
    BackendUnavailableError with the reason where there is none."""
    _start()
    cards = [(made_by, card) for made_by in listed("zeDriverGet") for card in listed("zeDeviceGet", made_by)]
    devices = [(*of, one) for of in cards for one in (of[1], *listed("zeDeviceGetSubDevices", of[1]))]
    found, reasons = filter_devices(devices, BACKEND, lambda device, index: describe(*device, index))
    if not found:
        raise _unavailable("; ".join(reasons) or "no Level Zero driver has a GPU")
    return found


def _start() -> None:
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


def describe(made_by: Handle, card: Handle, device: Handle, index: int) -> LevelZeroGpu | None:
    """A device; None where it is no GPU, BackendUnavailableError where its driver is too old."""
    about = given("zeDeviceGetProperties", device)
    if about["type"] != GPU:
        return None
    spirv = given("zeDeviceGetModuleProperties", device)["spirvVersionSupported"]
    compute = given("zeDeviceGetComputeProperties", device)
    version = given("zeDriverGetApiVersion", made_by)
    name = about["name"] or f"Intel GPU {about['deviceId']:04x}"
    _check_version(name, "Level Zero", version, LEAST_API)
    _check_version(name, "SPIR-V", spirv, LEAST_SPIRV)
    tile = about["subdeviceId"] if about["flags"] & SUBDEVICE else -1
    integrated = bool(about["flags"] & INTEGRATED)
    access = given("zeDeviceGetMemoryAccessProperties", device)["sharedSystemAllocCapabilities"]
    release = given("zeDriverGetProperties", made_by)["driverVersion"]
    family = architecture(about["deviceId"])
    info = DeviceInfo(
        backend=BACKEND,
        index=index,
        name=f"{name}, tile {tile}" if tile >= 0 else name,
        type=DeviceType.INTEGRATED if integrated else DeviceType.GPU,
        vendor="Intel" if about["vendorId"] == 0x8086 else f"{about['vendorId']:04x}",
        driver=f"Level Zero {'.'.join(map(str, _pair(version)))}, driver {release}",
        total_memory=sum(memory["totalSize"] for memory in listed("zeDeviceGetMemoryProperties", device)),
        max_allocation=about["maxMemAllocSize"],
        max_binding=about["maxMemAllocSize"],
        max_grid=tuple(compute[f"maxGroupCount{axis}"] for axis in "XYZ"),
        alignment=ALIGNMENT,
        transfer=TransferMode.UNIFIED if integrated else TransferMode.EXPLICIT_COPY,
        physical_id=physical_id(card),
        kernels=DELTA_KERNELS | ROTATED_KERNELS | {"top_k"},
        features=frozenset({"timings"}),
        batch_invariant_rows=dict.fromkeys(UNFUSED_KERNELS, FEW_ROWS),
        extra=MappingProxyType(
            {
                "uuid": bytes(about["uuid"]["id"]).hex(),
                "architecture": family.get("name", "unknown"),
                "dpas": "there, not used yet" if family.get("dpas") else "none known",
                "tiles": max(1, len(listed("zeDeviceGetSubDevices", device))),
                "compute_units": about["numSlices"] * about["numSubslicesPerSlice"] * about["numEUsPerSubslice"],
                "subgroups": " ".join(map(str, compute["subGroupSizes"][: compute["numSubGroupSizes"]])),
                "local_memory": compute["maxSharedLocalMemory"],
                "tick_ns": about["timerResolution"],
                "tick_bits": about["kernelTimestampValidBits"],
                "system_memory": integrated and bool(access & SYSTEM_ACCESS),
            }
        ),
    )
    return LevelZeroGpu(made_by, card, device, tile, _computing_group(device), info)


def _computing_group(device: Handle) -> int:
    groups = listed("zeDeviceGetCommandQueueGroupProperties", device)
    return next(at for at, group in enumerate(groups) if group["flags"] & COMPUTE)


def _pair(version: int) -> tuple[int, int]:
    return version >> 16, version & 0xFFFF


def _check_version(device: str, what: str, version: int, needed: tuple[int, int]) -> None:
    if _pair(version) < needed:
        (major, minor), (least, last) = _pair(version), needed
        said = f"the driver is too old: it has {what} {major}.{minor}, and {least}.{last} is needed"
        hint = "Update Intel's GPU driver"
        raise BackendUnavailableError(said, backend=BACKEND, device=device, operation="devices", hint=hint)


def physical_id(card: Handle) -> str:
    """PCI address as "domain:bus:device.function", or "" where the driver does not tell."""
    try:
        address = given("zeDevicePciGetPropertiesExt", card)["address"]
    except (GpuError, AttributeError):  # an old driver, an old loader
        return ""
    return pci_address(**address)


def free_memory(found: LevelZeroGpu) -> int:
    """Bytes of a GPU's memory modules, or of those of a tile, by sysman; -1 where the driver does not tell."""

    def counts(module: Handle) -> bool:
        place = given("zesMemoryGetProperties", module)
        return bool(place["onSubdevice"] and place["subdeviceId"] == found.tile)

    try:
        modules = listed("zesDeviceEnumMemoryModules", found.card)
        own = [module for module in modules if found.tile < 0 or counts(module)]
        return sum(given("zesMemoryGetState", module)["free"] for module in own) if own else -1
    except (GpuError, AttributeError):
        return -1
