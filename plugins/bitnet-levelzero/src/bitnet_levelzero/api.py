"""The binding: the part of Level Zero that this backend calls, as in ze_api.h and zes_api.h (1.3), for ctypes.

There is no well-kept binding for Python, and so few functions need none.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any, ClassVar


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
RESULTS = {
    0x1: "NOT_READY",
    0x70000001: "ERROR_DEVICE_LOST",
    0x70000002: "ERROR_OUT_OF_HOST_MEMORY",
    0x70000003: "ERROR_OUT_OF_DEVICE_MEMORY",
    0x70000004: "ERROR_MODULE_BUILD_FAILURE",
    0x70000005: "ERROR_MODULE_LINK_FAILURE",
    0x70000006: "ERROR_DEVICE_REQUIRES_RESET",
    0x70000007: "ERROR_DEVICE_IN_LOW_POWER_STATE",
    0x70010000: "ERROR_INSUFFICIENT_PERMISSIONS",
    0x70010001: "ERROR_NOT_AVAILABLE",
    0x70020000: "ERROR_DEPENDENCY_UNAVAILABLE",
    0x70020001: "WARNING_DROPPED_DATA",
    0x78000001: "ERROR_UNINITIALIZED",
    0x78000002: "ERROR_UNSUPPORTED_VERSION",
    0x78000003: "ERROR_UNSUPPORTED_FEATURE",
    0x78000004: "ERROR_INVALID_ARGUMENT",
    0x78000005: "ERROR_INVALID_NULL_HANDLE",
    0x78000006: "ERROR_HANDLE_OBJECT_IN_USE",
    0x78000007: "ERROR_INVALID_NULL_POINTER",
    0x78000008: "ERROR_INVALID_SIZE",
    0x78000009: "ERROR_UNSUPPORTED_SIZE",
    0x7800000A: "ERROR_UNSUPPORTED_ALIGNMENT",
    0x7800000B: "ERROR_INVALID_SYNCHRONIZATION_OBJECT",
    0x7800000C: "ERROR_INVALID_ENUMERATION",
    0x7800000D: "ERROR_UNSUPPORTED_ENUMERATION",
    0x7800000E: "ERROR_UNSUPPORTED_IMAGE_FORMAT",
    0x7800000F: "ERROR_INVALID_NATIVE_BINARY",
    0x78000010: "ERROR_INVALID_GLOBAL_NAME",
    0x78000011: "ERROR_INVALID_KERNEL_NAME",
    0x78000012: "ERROR_INVALID_FUNCTION_NAME",
    0x78000013: "ERROR_INVALID_GROUP_SIZE_DIMENSION",
    0x78000014: "ERROR_INVALID_GLOBAL_WIDTH_DIMENSION",
    0x78000015: "ERROR_INVALID_KERNEL_ARGUMENT_INDEX",
    0x78000016: "ERROR_INVALID_KERNEL_ARGUMENT_SIZE",
    0x78000017: "ERROR_INVALID_KERNEL_ATTRIBUTE_VALUE",
    0x78000018: "ERROR_INVALID_MODULE_UNLINKED",
    0x78000019: "ERROR_INVALID_COMMAND_LIST_TYPE",
    0x7800001A: "ERROR_OVERLAPPING_REGIONS",
    0x7800001B: "WARNING_ACTION_REQUIRED",
    0x7800001C: "ERROR_INVALID_KERNEL_HANDLE",
    0x7FF00001: "EXP_ERROR_DEVICE_IS_NOT_VERTEX",
    0x7FF00002: "EXP_ERROR_VERTEX_IS_NOT_DEVICE",
    0x7FF00003: "EXP_ERROR_REMOTE_DEVICE",
    0x7FF00004: "EXP_ERROR_OPERANDS_INCOMPATIBLE",
    0x7FF00005: "EXP_RTAS_BUILD_RETRY",
    0x7FF00006: "EXP_RTAS_BUILD_DEFERRED",
    0x7FFFFFFE: "ERROR_UNKNOWN",
}
"""Names of every ze_result_t but success, up to ze_api.h 1.12."""
SCALARS = {"u32": c_uint32, "f32": c_float}
