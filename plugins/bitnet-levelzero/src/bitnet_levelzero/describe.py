"""The devices of this machine, as their drivers describe them, and why there is none."""

from __future__ import annotations

import glob
import logging
import os
import sys
from ctypes import byref, c_uint32, c_void_p
from dataclasses import dataclass, replace
from types import MappingProxyType

from bitnet_core.errors import BackendUnavailableError, GpuError
from bitnet_core.hal.device import DeviceInfo, DeviceType, TransferMode

from bitnet_levelzero import api
from bitnet_levelzero.errors import BACKEND, check
from bitnet_levelzero.tuning import ARCHITECTURES

log = logging.getLogger(__name__)

LEAST_API, LEAST_SPIRV = (1, 3), (1, 2)
ALIGNMENT = 16
"""Bytes: kernels load 16 at a time."""
INTEGRATED, GPU = 1, 1
"""A flag, and a type, of ze_device_properties_t."""
COMPUTE = 1
"""A flag of a command queue group."""
SYSTEM_ACCESS = 1
"""A flag of shared system allocations."""
UNINITIALIZED = 0x78000001
NODES = "/dev/dri/renderD*"
_DRIVER = "Install Intel's GPU driver"
_HOW = {
    "linux": f"{_DRIVER}: the packages level-zero (or libze1) and intel-level-zero-gpu (or libze-intel-gpu1)",
    "win32": f"{_DRIVER} from intel.com; it brings ze_loader.dll",
}


@dataclass(frozen=True, slots=True)
class Found:
    """A device with its driver; ordinal: the group of its queues that compute; alone: there is no other driver."""

    driver: c_void_p
    device: c_void_p
    ordinal: int
    info: DeviceInfo
    alone: bool = True


def find_devices() -> list[Found]:
    """Every GPU of every driver that is new enough; BackendUnavailableError with the reason where there is none."""
    try:
        api.load()
    except OSError as exc:
        raise _unavailable("the Level Zero loader is not installed", "") from exc
    result = api.load().zeInit(0)
    if result == UNINITIALIZED:
        raise _unavailable("the Level Zero loader found no driver with a GPU", f"0x{result:08x}")
    check(result, "zeInit")
    found, reasons, index = [], [], 0
    drivers = api.listed("zeDriverGet", None, c_void_p)
    for driver in drivers:
        for device in api.listed("zeDeviceGet", driver, c_void_p):
            try:
                one = describe(driver, device, index)
            except GpuError as exc:
                reasons.append(str(exc))
                log.info("level-zero:%d is left out: %s", index, exc)
            else:
                found += [replace(one, alone=len(drivers) == 1)] if one else []
            index += 1
    if not found:
        raise _unavailable("; ".join(reasons) or "no Level Zero driver has a GPU", "")
    return found


def _unavailable(reason: str, code: str) -> BackendUnavailableError:
    closed = [node for node in glob.glob(NODES) if not os.access(node, os.R_OK | os.W_OK)]
    hint = _HOW.get(sys.platform, f"{_DRIVER}; it exists for Linux and Windows")
    if closed:
        reason = f"{reason}, and {closed[0]} may not be opened"
        hint = "Join the group that owns it: sudo usermod -aG render $USER, then log in again"
    return BackendUnavailableError(reason, backend=BACKEND, operation="zeInit", code=code, hint=hint)


def describe(driver: c_void_p, device: c_void_p, index: int) -> Found | None:
    """A device; None where it is no GPU, BackendUnavailableError where its driver is too old."""
    properties, module, compute = api.DeviceProperties(), api.ModuleProperties(), api.ComputeProperties()
    api.call("zeDeviceGetProperties", device, byref(properties))
    if properties.type != GPU:
        return None
    name = properties.name.decode(errors="replace") or f"Intel GPU {properties.deviceId:04x}"
    api.call("zeDeviceGetModuleProperties", device, byref(module))
    api.call("zeDeviceGetComputeProperties", device, byref(compute))
    version, made = c_uint32(), api.DriverProperties()
    api.call("zeDriverGetApiVersion", driver, byref(version))
    api.call("zeDriverGetProperties", driver, byref(made))
    _check_versions(name, _pair(version.value), _pair(module.spirvVersionSupported))
    groups = api.listed("zeDeviceGetCommandQueueGroupProperties", device, api.QueueGroupProperties)
    memories = api.listed("zeDeviceGetMemoryProperties", device, api.MemoryProperties)
    ordinal = next(at for at, group in enumerate(groups) if group.flags & COMPUTE)
    integrated = bool(properties.flags & INTEGRATED)
    architecture = ARCHITECTURES.get(properties.deviceId >> 8)
    info = DeviceInfo(
        backend=BACKEND,
        index=index,
        name=name,
        type=DeviceType.INTEGRATED if integrated else DeviceType.GPU,
        vendor="Intel" if properties.vendorId == 0x8086 else f"{properties.vendorId:04x}",
        driver=f"Level Zero {'.'.join(map(str, _pair(version.value)))}, driver {made.driverVersion}",
        total_memory=sum(memory.totalSize for memory in memories),
        max_allocation=properties.maxMemAllocSize,
        max_binding=properties.maxMemAllocSize,
        max_grid=tuple(compute.maxGroupCount),
        alignment=ALIGNMENT,
        transfer=TransferMode.UNIFIED if integrated else TransferMode.EXPLICIT_COPY,
        physical_id=physical_id(device),
        kernels=frozenset({"top_k"}),
        features=frozenset({"timings"}),
        extra=MappingProxyType(
            {
                "uuid": bytes(properties.uuid).hex(),
                "architecture": architecture.name if architecture else "unknown",
                "tiles": max(1, len(api.listed("zeDeviceGetSubDevices", device, c_void_p))),
                "compute_units": properties.numSlices * properties.numSubslicesPerSlice * properties.numEUsPerSubslice,
                "subgroups": " ".join(map(str, compute.subGroupSizes[: compute.numSubGroupSizes])),
                "local_memory": compute.maxSharedLocalMemory,
                "tick_ns": properties.timerResolution,
                "tick_bits": properties.kernelTimestampValidBits,
                "system_memory": integrated and _reads_system_memory(device),
            }
        ),
    )
    return Found(driver, device, ordinal, info)


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
    access = api.MemoryAccessProperties()
    api.call("zeDeviceGetMemoryAccessProperties", device, byref(access))
    return bool(access.system & SYSTEM_ACCESS)


def physical_id(device: c_void_p) -> str:
    """PCI address as "domain:bus:device.function", or "" where the driver does not tell."""
    properties = api.PciProperties()
    if not api.has("zeDevicePciGetPropertiesExt") or api.load().zeDevicePciGetPropertiesExt(device, byref(properties)):
        return ""
    domain, bus, number, function = properties.address
    return f"{domain:04x}:{bus:02x}:{number:02x}.{function}"


def free_memory(device: c_void_p) -> int:
    """Bytes of all memory modules by sysman; -1 where the driver does not tell."""
    try:
        modules = api.listed("zesDeviceEnumMemoryModules", device, c_void_p)
        states = [api.MemoryState() for _ in modules]
        for module, state in zip(modules, states, strict=True):
            api.call("zesMemoryGetState", module, byref(state))
    except (GpuError, AttributeError):
        return -1
    return sum(state.free for state in states) if states else -1
