"""The devices of this machine, as their drivers describe them, and why there is none."""

from __future__ import annotations

import glob
import logging
import os
import sys
from collections.abc import Iterator
from ctypes import byref, c_uint32, c_void_p
from dataclasses import dataclass, replace
from types import MappingProxyType

from bitnet_core.errors import BackendUnavailableError, GpuError
from bitnet_core.hal.device import DeviceInfo, DeviceType, TransferMode

from bitnet_levelzero import api, driver
from bitnet_levelzero.driver import asked, handles, structures
from bitnet_levelzero.errors import BACKEND, UNINITIALIZED, check
from bitnet_levelzero.tuning import architecture

log = logging.getLogger(__name__)

LEAST_API, LEAST_SPIRV = (1, 3), (1, 2)
ALIGNMENT = 16
"""Bytes: kernels load 16 at a time."""
GPU = 1
"""A type of ze_device_properties_t."""
INTEGRATED, SUBDEVICE = 1, 2
"""Flags of ze_device_properties_t."""
COMPUTE = 1
"""A flag of a command queue group."""
SYSTEM_ACCESS = 1
"""A flag of shared system allocations."""
NODES = "/dev/dri/renderD*"
_DRIVER = "Install Intel's GPU driver"
_HOW = {
    "linux": f"{_DRIVER}: the packages level-zero (or libze1) and intel-level-zero-gpu (or libze-intel-gpu1)",
    "win32": f"{_DRIVER} from intel.com; it brings ze_loader.dll",
}


@dataclass(frozen=True, slots=True)
class Found:
    """A device with its driver. card: the whole GPU, where the device is a tile (-1: it is none) of it; ordinal: the
    group of its queues that compute; alone: there is no other driver."""

    driver: c_void_p
    card: c_void_p
    device: c_void_p
    tile: int
    ordinal: int
    info: DeviceInfo
    alone: bool = True


def find_devices() -> list[Found]:
    """Every GPU of every driver that is new enough, and behind it its tiles where it has several;
    BackendUnavailableError with the reason where there is none."""
    _start()
    drivers = handles("zeDriverGet")
    found, reasons = [], []
    for index, (made_by, card, device) in enumerate(_all_devices(drivers)):
        try:
            one = describe(made_by, card, device, index)
        except GpuError as exc:
            reasons.append(str(exc))
            log.info("level-zero:%d is left out: %s", index, exc)
        else:
            found += [replace(one, alone=len(drivers) == 1)] if one else []
    if not found:
        raise _unavailable("; ".join(reasons) or "no Level Zero driver has a GPU", "")
    return found


def device_infos() -> list[DeviceInfo]:
    """Of all that `find_devices` finds."""
    return [found.info for found in find_devices()]


def _start() -> None:
    try:
        result = driver.load().zeInit(0)
    except OSError as exc:
        raise _unavailable("the Level Zero loader is not installed", "") from exc
    if result == UNINITIALIZED:
        raise _unavailable("the Level Zero loader found no driver with a GPU", f"0x{result:08x}")
    check(result, "zeInit")


def _all_devices(drivers: list[c_void_p]) -> Iterator[tuple[c_void_p, c_void_p, c_void_p]]:
    for made_by in drivers:
        for card in handles("zeDeviceGet", made_by):
            for device in (card, *handles("zeDeviceGetSubDevices", card)):
                yield made_by, card, device


def _unavailable(reason: str, code: str) -> BackendUnavailableError:
    closed = [node for node in glob.glob(NODES) if not os.access(node, os.R_OK | os.W_OK)]
    hint = _HOW.get(sys.platform, f"{_DRIVER}; it exists for Linux and Windows")
    if closed:
        reason = f"{reason}, and {closed[0]} may not be opened"
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
    driver.call("zeDriverGetApiVersion", made_by, byref(version))
    name = properties.name.decode(errors="replace") or f"Intel GPU {properties.deviceId:04x}"
    _check_versions(name, _pair(version.value), _pair(module.spirvVersionSupported))
    groups = structures("zeDeviceGetCommandQueueGroupProperties", device, api.QueueGroupProperties)
    memories = structures("zeDeviceGetMemoryProperties", device, api.MemoryProperties)
    tile = properties.subdeviceId if properties.flags & SUBDEVICE else -1
    integrated = bool(properties.flags & INTEGRATED)
    release = asked("zeDriverGetProperties", made_by, api.DriverProperties).driverVersion
    family = architecture(properties.deviceId)
    info = DeviceInfo(
        backend=BACKEND,
        index=index,
        name=f"{name}, tile {tile}" if tile >= 0 else name,
        type=DeviceType.INTEGRATED if integrated else DeviceType.GPU,
        vendor="Intel" if properties.vendorId == 0x8086 else f"{properties.vendorId:04x}",
        driver=f"Level Zero {'.'.join(map(str, _pair(version.value)))}, driver {release}",
        total_memory=sum(memory.totalSize for memory in memories),
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
                "system_memory": integrated and _reads_system_memory(device),
            }
        ),
    )
    ordinal = next(at for at, group in enumerate(groups) if group.flags & COMPUTE)
    return Found(made_by, card, device, tile, ordinal, info)


def _pair(version: int) -> tuple[int, int]:
    return version >> 16, version & 0xFFFF


def _check_versions(name: str, speaks: tuple[int, int], spirv: tuple[int, int]) -> None:
    for what, has, needs in (("Level Zero", speaks, LEAST_API), ("SPIR-V", spirv, LEAST_SPIRV)):
        if has < needs:
            raise BackendUnavailableError(
                f"the driver is too old: it has {what} {has[0]}.{has[1]}, and {needs[0]}.{needs[1]} is needed",
                backend=BACKEND,
                device=name,
                operation="devices",
                hint="Update Intel's GPU driver",
            )


def _reads_system_memory(device: c_void_p) -> bool:
    access = asked("zeDeviceGetMemoryAccessProperties", device, api.MemoryAccessProperties)
    return bool(access.system & SYSTEM_ACCESS)


def physical_id(card: c_void_p) -> str:
    """PCI address as "domain:bus:device.function", or "" where the driver does not tell."""
    try:
        domain, bus, number, function = asked("zeDevicePciGetPropertiesExt", card, api.PciProperties).address
    except (GpuError, AttributeError):  # an old driver, an old loader
        return ""
    return f"{domain:04x}:{bus:02x}:{number:02x}.{function}"


def free_memory(found: Found) -> int:
    """Bytes of a GPU's memory modules, or of those of a tile, by sysman; -1 where the driver does not tell."""
    try:
        modules = handles("zesDeviceEnumMemoryModules", found.card)
        if found.tile >= 0:
            places = [asked("zesMemoryGetProperties", module, api.ModuleOfMemory) for module in modules]
            on_tile = [place.onSubdevice and place.subdeviceId == found.tile for place in places]
            modules = [module for module, own in zip(modules, on_tile, strict=True) if own]
        states = [asked("zesMemoryGetState", module, api.MemoryState) for module in modules]
    except (GpuError, AttributeError):
        return -1
    return sum(state.free for state in states) if states else -1
