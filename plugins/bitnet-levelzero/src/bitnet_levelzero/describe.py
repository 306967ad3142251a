"""The devices of this machine, as their drivers describe them, and why there is none."""

from __future__ import annotations

import glob
import logging
import os
import sys
from ctypes import byref, c_uint32, c_void_p
from dataclasses import dataclass
from types import MappingProxyType

from bitnet_core.errors import BackendUnavailableError, GpuError
from bitnet_core.hal.device import DeviceInfo, DeviceType, TransferMode

from bitnet_levelzero import api
from bitnet_levelzero.api import asked, handles, structures
from bitnet_levelzero.errors import BACKEND, UNINITIALIZED, check
from bitnet_levelzero.tuning import architecture

log = logging.getLogger(__name__)

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
class Found:
    """A device with its driver. card: the whole GPU, where the device is a tile (-1: it is none) of it; ordinal: the
    group of its queues that compute."""

    driver: c_void_p
    card: c_void_p
    device: c_void_p
    tile: int
    ordinal: int
    info: DeviceInfo


def usable() -> list[Found]:
    """Every GPU of every driver that is new enough, and behind it its tiles where it has several;
    BackendUnavailableError with the reason where there is none."""
    _start()
    cards = [(made_by, card) for made_by in handles("zeDriverGet") for card in handles("zeDeviceGet", made_by)]
    devices = [(*of, one) for of in cards for one in (of[1], *handles("zeDeviceGetSubDevices", of[1]))]
    found, reasons = [], []
    for index, (made_by, card, device) in enumerate(devices):
        try:
            one = describe(made_by, card, device, index)
        except GpuError as exc:
            reasons.append(str(exc))
            log.info("level-zero:%d is left out: %s", index, exc)
        else:
            found += [one] if one else []
    if not found:
        raise _unavailable("; ".join(reasons) or "no Level Zero driver has a GPU")
    return found


def _start() -> None:
    try:
        result = api.load().zeInit(0)
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


def describe(made_by: c_void_p, card: c_void_p, device: c_void_p, index: int) -> Found | None:
    """A device; None where it is no GPU, BackendUnavailableError where its driver is too old."""
    properties = asked("zeDeviceGetProperties", device, api.DeviceProperties)
    if properties.type != GPU:
        return None
    module = asked("zeDeviceGetModuleProperties", device, api.ModuleProperties)
    compute = asked("zeDeviceGetComputeProperties", device, api.ComputeProperties)
    version = c_uint32()
    api.call("zeDriverGetApiVersion", made_by, byref(version))
    name = properties.name.decode(errors="replace") or f"Intel GPU {properties.deviceId:04x}"
    _check_version(name, "Level Zero", version.value, LEAST_API)
    _check_version(name, "SPIR-V", module.spirvVersionSupported, LEAST_SPIRV)
    tile = properties.subdeviceId if properties.flags & SUBDEVICE else -1
    integrated = bool(properties.flags & INTEGRATED)
    access = asked("zeDeviceGetMemoryAccessProperties", device, api.MemoryAccessProperties).system
    release = asked("zeDriverGetProperties", made_by, api.DriverProperties).driverVersion
    family = architecture(properties.deviceId)
    info = DeviceInfo(
        backend=BACKEND,
        index=index,
        name=f"{name}, tile {tile}" if tile >= 0 else name,
        type=DeviceType.INTEGRATED if integrated else DeviceType.GPU,
        vendor="Intel" if properties.vendorId == 0x8086 else f"{properties.vendorId:04x}",
        driver=f"Level Zero {'.'.join(map(str, _pair(version.value)))}, driver {release}",
        total_memory=sum(m.totalSize for m in structures("zeDeviceGetMemoryProperties", device, api.MemoryProperties)),
        max_allocation=properties.maxMemAllocSize,
        max_binding=properties.maxMemAllocSize,
        max_grid=tuple(compute.maxGroupCount),
        alignment=ALIGNMENT,
        transfer=TransferMode.UNIFIED if integrated else TransferMode.EXPLICIT_COPY,
        physical_id=physical_id(card),
        kernels=frozenset({"top_k"}),
        features=frozenset({"timings"}),
        extra=MappingProxyType(
            {
                "uuid": bytes(properties.uuid).hex(),
                "architecture": family.get("name", "unknown"),
                "dpas": "there, not used yet" if family.get("dpas") else "none known",
                "tiles": max(1, len(handles("zeDeviceGetSubDevices", device))),
                "compute_units": properties.numSlices * properties.numSubslicesPerSlice * properties.numEUsPerSubslice,
                "subgroups": " ".join(map(str, compute.subGroupSizes[: compute.numSubGroupSizes])),
                "local_memory": compute.maxSharedLocalMemory,
                "tick_ns": properties.timerResolution,
                "tick_bits": properties.kernelTimestampValidBits,
                "system_memory": integrated and bool(access & SYSTEM_ACCESS),
            }
        ),
    )
    return Found(made_by, card, device, tile, _computing_group(device), info)


def _computing_group(device: c_void_p) -> int:
    groups = structures("zeDeviceGetCommandQueueGroupProperties", device, api.QueueGroupProperties)
    return next(at for at, group in enumerate(groups) if group.flags & COMPUTE)


def _pair(version: int) -> tuple[int, int]:
    return version >> 16, version & 0xFFFF


def _check_version(device: str, what: str, version: int, needed: tuple[int, int]) -> None:
    if _pair(version) < needed:
        (major, minor), (least, last) = _pair(version), needed
        said = f"the driver is too old: it has {what} {major}.{minor}, and {least}.{last} is needed"
        hint = "Update Intel's GPU driver"
        raise BackendUnavailableError(said, backend=BACKEND, device=device, operation="devices", hint=hint)


def physical_id(card: c_void_p) -> str:
    """PCI address as "domain:bus:device.function", or "" where the driver does not tell."""
    try:
        domain, bus, number, function = asked("zeDevicePciGetPropertiesExt", card, api.PciProperties).address
    except (GpuError, AttributeError):  # an old driver, an old loader
        return ""
    return f"{domain:04x}:{bus:02x}:{number:02x}.{function}"


def free_memory(found: Found) -> int:
    """Bytes of a GPU's memory modules, or of those of a tile, by sysman; -1 where the driver does not tell."""

    def counts(module: c_void_p) -> bool:
        place = asked("zesMemoryGetProperties", module, api.ModuleOfMemory)
        return bool(place.onSubdevice and place.subdeviceId == found.tile)

    try:
        modules = handles("zesDeviceEnumMemoryModules", found.card)
        own = [module for module in modules if found.tile < 0 or counts(module)]
        return sum(asked("zesMemoryGetState", module, api.MemoryState).free for module in own) if own else -1
    except (GpuError, AttributeError):
        return -1
