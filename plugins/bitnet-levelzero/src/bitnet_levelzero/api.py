"""The binding: the part of Level Zero that this backend calls, as in ze_api.h and zes_api.h (1.3), for ctypes, and how
it is called: results become exceptions, and nothing is loaded before the first call.

There is no well-kept binding for Python, and so few functions need none.
"""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import (
    POINTER,
    byref,
    c_char,
    c_char_p,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache
from typing import Any, ClassVar, TypeVar, Unpack

from bitnet_core.hal.failures import Details

from bitnet_levelzero.errors import check

LIBRARY = "ze_loader.dll" if sys.platform == "win32" else "libze_loader.so.1"
D = TypeVar("D", bound="Described")


class Described(ctypes.Structure):
    """Begins with what it is, and a link to an extension of it."""

    STYPE = 0
    _fields_: ClassVar[Any] = (("stype", c_uint32), ("pNext", c_void_p))

    def __init__(self, **values: Any) -> None:
        super().__init__(stype=self.STYPE, **values)


class DeviceProperties(Described):
    STYPE = 0x3
    _fields_ = (
        *((name, c_uint32) for name in ("type", "vendorId", "deviceId", "flags", "subdeviceId", "coreClockRate")),
        ("maxMemAllocSize", c_uint64),
        *((name, c_uint32) for name in ("maxHardwareContexts", "maxCommandQueuePriority", "numThreadsPerEU")),
        *((name, c_uint32) for name in ("physicalEUSimdWidth", "numEUsPerSubslice", "numSubslicesPerSlice")),
        ("numSlices", c_uint32),
        ("timerResolution", c_uint64),  # ns of a tick
        ("timestampValidBits", c_uint32),
        ("kernelTimestampValidBits", c_uint32),
        ("uuid", c_uint8 * 16),
        ("name", c_char * 256),
    )


class DriverProperties(Described):
    STYPE = 0x1
    _fields_ = (("uuid", c_uint8 * 16), ("driverVersion", c_uint32))


class ComputeProperties(Described):
    STYPE = 0x4
    _fields_ = (
        ("maxTotalGroupSize", c_uint32),
        ("maxGroupSize", c_uint32 * 3),
        ("maxGroupCount", c_uint32 * 3),
        ("maxSharedLocalMemory", c_uint32),
        ("numSubGroupSizes", c_uint32),
        ("subGroupSizes", c_uint32 * 8),
    )


class ModuleProperties(Described):
    STYPE = 0x5
    _fields_ = (
        *((name, c_uint32) for name in ("spirvVersionSupported", "flags", "fp16flags", "fp32flags", "fp64flags")),
        ("maxArgumentsSize", c_uint32),
        ("printfBufferSize", c_uint32),
        ("nativeKernelSupported", c_uint8 * 16),
    )


class QueueGroupProperties(Described):
    STYPE = 0x6
    _fields_ = (("flags", c_uint32), ("maxMemoryFillPatternSize", c_size_t), ("numQueues", c_uint32))


class MemoryProperties(Described):
    STYPE = 0x7
    _fields_ = (
        *((name, c_uint32) for name in ("flags", "maxClockRate", "maxBusWidth")),
        ("totalSize", c_uint64),
        ("name", c_char * 256),
    )


class MemoryAccessProperties(Described):
    STYPE = 0x8
    _fields_ = tuple((name, c_uint32) for name in ("host", "device", "shared", "crossDevice", "system"))


class PciProperties(Described):
    STYPE = 0x10008
    _fields_ = (
        ("address", c_uint32 * 4),  # domain, bus, device, function
        ("generation", c_int32),
        ("lanes", c_int32),
        ("maxBandwidth", c_int64),
    )


class ContextDesc(Described):
    STYPE = 0xD
    _fields_ = (("flags", c_uint32),)


class QueueDesc(Described):
    STYPE = 0xE
    _fields_ = tuple((name, c_uint32) for name in ("ordinal", "index", "flags", "mode", "priority"))


class ListDesc(Described):
    STYPE = 0xF
    _fields_ = (("ordinal", c_uint32), ("flags", c_uint32))


class EventPoolDesc(Described):
    STYPE = 0x10
    _fields_ = (("flags", c_uint32), ("count", c_uint32))


class EventDesc(Described):
    STYPE = 0x11
    _fields_ = (("index", c_uint32), ("signal", c_uint32), ("wait", c_uint32))


class FenceDesc(Described):
    STYPE = 0x12
    _fields_ = (("flags", c_uint32),)


class DeviceMemDesc(Described):
    STYPE = 0x15
    _fields_ = (("flags", c_uint32), ("ordinal", c_uint32))


class HostMemDesc(Described):
    STYPE = 0x16
    _fields_ = (("flags", c_uint32),)


class ModuleDesc(Described):
    STYPE = 0x1B
    _fields_ = (
        ("format", c_uint32),  # SPIR-V or native
        ("inputSize", c_size_t),
        ("pInputModule", c_char_p),
        ("pBuildFlags", c_char_p),
        ("pConstants", c_void_p),
    )


class KernelDesc(Described):
    STYPE = 0x1D
    _fields_ = (("flags", c_uint32), ("pKernelName", c_char_p))


class ModuleOfMemory(Described):
    STYPE = 0xB  # zes_mem_properties_t
    _fields_ = (
        ("type", c_uint32),
        ("onSubdevice", c_uint8),
        ("subdeviceId", c_uint32),
        ("location", c_uint32),
        ("physicalSize", c_uint64),
        ("busWidth", c_int32),
        ("numChannels", c_int32),
    )


class MemoryState(Described):
    STYPE = 0x1E  # zes_mem_state_t
    _fields_ = (("health", c_uint32), ("free", c_uint64), ("size", c_uint64))


class Timestamps(ctypes.Structure):
    """Start and end of a kernel by the device's clock and by the context's."""

    _fields_ = tuple((name, c_uint64) for name in ("start", "end", "contextStart", "contextEnd"))


class GroupCount(ctypes.Structure):
    """Groups of a launch."""

    _fields_ = tuple((name, c_uint32) for name in "xyz")


_HANDLE, _OUT = c_void_p, POINTER(c_void_p)
_EVENTS = (_HANDLE, c_uint32, _OUT)  # to signal; how many to wait for; these
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "zeInit": (c_uint32,),
    "zeDriverGet": (POINTER(c_uint32), _OUT),
    "zeDriverGetApiVersion": (_HANDLE, POINTER(c_uint32)),
    "zeDriverGetProperties": (_HANDLE, POINTER(DriverProperties)),
    "zeDeviceGet": (_HANDLE, POINTER(c_uint32), _OUT),
    "zeDeviceGetSubDevices": (_HANDLE, POINTER(c_uint32), _OUT),
    "zeDeviceGetProperties": (_HANDLE, POINTER(DeviceProperties)),
    "zeDeviceGetComputeProperties": (_HANDLE, POINTER(ComputeProperties)),
    "zeDeviceGetModuleProperties": (_HANDLE, POINTER(ModuleProperties)),
    "zeDeviceGetMemoryProperties": (_HANDLE, POINTER(c_uint32), POINTER(MemoryProperties)),
    "zeDeviceGetMemoryAccessProperties": (_HANDLE, POINTER(MemoryAccessProperties)),
    "zeDeviceGetCommandQueueGroupProperties": (_HANDLE, POINTER(c_uint32), POINTER(QueueGroupProperties)),
    "zeDevicePciGetPropertiesExt": (_HANDLE, POINTER(PciProperties)),
    "zesDeviceEnumMemoryModules": (_HANDLE, POINTER(c_uint32), _OUT),
    "zesMemoryGetProperties": (_HANDLE, POINTER(ModuleOfMemory)),
    "zesMemoryGetState": (_HANDLE, POINTER(MemoryState)),
    "zeContextCreate": (_HANDLE, POINTER(ContextDesc), _OUT),
    "zeContextDestroy": (_HANDLE,),
    "zeCommandQueueCreate": (_HANDLE, _HANDLE, POINTER(QueueDesc), _OUT),
    "zeCommandQueueDestroy": (_HANDLE,),
    "zeCommandQueueExecuteCommandLists": (_HANDLE, c_uint32, _OUT, _HANDLE),
    "zeCommandQueueSynchronize": (_HANDLE, c_uint64),
    "zeCommandListCreate": (_HANDLE, _HANDLE, POINTER(ListDesc), _OUT),
    "zeCommandListDestroy": (_HANDLE,),
    "zeCommandListClose": (_HANDLE,),
    "zeCommandListReset": (_HANDLE,),
    "zeCommandListAppendBarrier": (_HANDLE, *_EVENTS),
    "zeCommandListAppendMemoryCopy": (_HANDLE, c_void_p, c_void_p, c_size_t, *_EVENTS),
    "zeCommandListAppendMemoryFill": (_HANDLE, c_void_p, c_void_p, c_size_t, c_size_t, *_EVENTS),
    "zeCommandListAppendLaunchKernel": (_HANDLE, _HANDLE, POINTER(GroupCount), *_EVENTS),
    "zeFenceCreate": (_HANDLE, POINTER(FenceDesc), _OUT),
    "zeFenceDestroy": (_HANDLE,),
    "zeFenceHostSynchronize": (_HANDLE, c_uint64),
    "zeEventPoolCreate": (_HANDLE, POINTER(EventPoolDesc), c_uint32, _OUT, _OUT),
    "zeEventPoolDestroy": (_HANDLE,),
    "zeEventCreate": (_HANDLE, POINTER(EventDesc), _OUT),
    "zeEventDestroy": (_HANDLE,),
    "zeEventQueryKernelTimestamp": (_HANDLE, POINTER(Timestamps)),
    "zeMemAllocDevice": (_HANDLE, POINTER(DeviceMemDesc), c_size_t, c_size_t, _HANDLE, _OUT),
    "zeMemAllocHost": (_HANDLE, POINTER(HostMemDesc), c_size_t, c_size_t, _OUT),
    "zeMemAllocShared": (_HANDLE, POINTER(DeviceMemDesc), POINTER(HostMemDesc), c_size_t, c_size_t, _HANDLE, _OUT),
    "zeMemFree": (_HANDLE, c_void_p),
    "zeModuleCreate": (_HANDLE, _HANDLE, POINTER(ModuleDesc), _OUT, _OUT),
    "zeModuleDestroy": (_HANDLE,),
    "zeModuleGetNativeBinary": (_HANDLE, POINTER(c_size_t), c_void_p),
    "zeModuleBuildLogGetString": (_HANDLE, POINTER(c_size_t), c_char_p),
    "zeModuleBuildLogDestroy": (_HANDLE,),
    "zeKernelCreate": (_HANDLE, POINTER(KernelDesc), _OUT),
    "zeKernelDestroy": (_HANDLE,),
    "zeKernelSetGroupSize": (_HANDLE, c_uint32, c_uint32, c_uint32),
    "zeKernelSetArgumentValue": (_HANDLE, c_uint32, c_size_t, c_void_p),
}
"""Every function with its argument types; all return a ze_result_t."""
SCALARS = {"u32": c_uint32, "f32": c_float}


@cache
def load() -> ctypes.CDLL:
    """The loader; OSError where it is not installed."""
    os.environ.setdefault("ZES_ENABLE_SYSMAN", "1")  # free memory; drivers read it in zeInit
    library = ctypes.CDLL(LIBRARY)
    for name, arguments in FUNCTIONS.items():
        function = getattr(library, name, None)
        if function is not None:  # an old loader lacks some, which are asked for by `has`
            function.argtypes, function.restype = arguments, c_uint32
    return library


def has(name: str) -> bool:
    """Whether the loader knows a function."""
    return hasattr(load(), name)


def call(name: str, *arguments: Any, doing: str = "", **details: Unpack[Details]) -> None:
    """Call a function; the exception of its result if it fails."""
    check(getattr(load(), name)(*arguments), doing or name, **details)


def created(name: str, *arguments: Any) -> c_void_p:
    """The handle that a function gives as its last argument."""
    handle = c_void_p()
    call(name, *arguments, byref(handle))
    return handle


def asked(name: str, handle: c_void_p, kind: type[D]) -> D:
    """The structure that a function fills in."""
    answer = kind()
    call(name, handle, byref(answer))
    return answer


def handles(name: str, *parent: c_void_p) -> list[c_void_p]:
    """All handles that a function counts first and then gives."""
    return [c_void_p(handle) for handle in _counted(name, parent, c_void_p)]


def structures(name: str, parent: c_void_p, kind: type[D]) -> list[D]:
    """All structures that a function counts first and then fills in."""
    return list(_counted(name, (parent,), kind))


def _counted(name: str, parent: tuple[c_void_p, ...], kind: Any) -> Any:
    count = c_uint32()
    call(name, *parent, byref(count), None)
    answers = (kind * count.value)(*(kind() for _ in range(count.value)))
    if count.value:
        call(name, *parent, byref(count), answers)
    return answers
