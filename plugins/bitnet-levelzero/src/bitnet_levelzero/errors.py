"""The one place where Level Zero's results become exceptions."""

from __future__ import annotations

from bitnet_core.errors import (
    BackendUnavailableError,
    DeviceLostError,
    GpuError,
    GpuTimeoutError,
    KernelCompileError,
    LaunchError,
    OutOfMemoryError,
    UnsupportedError,
)

BACKEND = "level-zero"

_LOST = (DeviceLostError, "The device was reset or removed; open it again or choose another")
_NO_MEMORY = (OutOfMemoryError, "Use a smaller context or model, or close other programs that use the device")
_NO_DRIVER = (BackendUnavailableError, "Install or update Intel's GPU driver")
_UNSUPPORTED = (UnsupportedError, "Update Intel's GPU driver")
_BUILD = (KernelCompileError, "Update Intel's GPU driver; the compiler's text is in the log of this error")
_OURS = (LaunchError, "Update the driver; if it stays, report this with the output of `bitnet doctor`")
_SLOW = (GpuTimeoutError, "Set BITNET_GPU_TIMEOUT to more seconds, or choose another device")

TABLE: dict[int, tuple[str, type[GpuError], str]] = {
    0x1: ("NOT_READY", *_SLOW),
    0x70000001: ("ERROR_DEVICE_LOST", *_LOST),
    0x70000002: ("ERROR_OUT_OF_HOST_MEMORY", *_NO_MEMORY),
    0x70000003: ("ERROR_OUT_OF_DEVICE_MEMORY", *_NO_MEMORY),
    0x70000004: ("ERROR_MODULE_BUILD_FAILURE", *_BUILD),
    0x70000005: ("ERROR_MODULE_LINK_FAILURE", *_BUILD),
    0x70000006: ("ERROR_DEVICE_REQUIRES_RESET", *_LOST),
    0x70000007: ("ERROR_DEVICE_IN_LOW_POWER_STATE", *_OURS),
    0x70010000: ("ERROR_INSUFFICIENT_PERMISSIONS", BackendUnavailableError, "Join the groups render and video"),
    0x70010001: ("ERROR_NOT_AVAILABLE", *_OURS),
    0x70020000: ("ERROR_DEPENDENCY_UNAVAILABLE", *_NO_DRIVER),
    0x70020001: ("WARNING_DROPPED_DATA", *_OURS),
    0x78000001: ("ERROR_UNINITIALIZED", *_NO_DRIVER),
    0x78000002: ("ERROR_UNSUPPORTED_VERSION", *_UNSUPPORTED),
    0x78000003: ("ERROR_UNSUPPORTED_FEATURE", *_UNSUPPORTED),
    0x78000004: ("ERROR_INVALID_ARGUMENT", *_OURS),
    0x78000005: ("ERROR_INVALID_NULL_HANDLE", *_OURS),
    0x78000006: ("ERROR_HANDLE_OBJECT_IN_USE", *_OURS),
    0x78000007: ("ERROR_INVALID_NULL_POINTER", *_OURS),
    0x78000008: ("ERROR_INVALID_SIZE", *_OURS),
    0x78000009: ("ERROR_UNSUPPORTED_SIZE", *_NO_MEMORY),
    0x7800000A: ("ERROR_UNSUPPORTED_ALIGNMENT", *_OURS),
    0x7800000B: ("ERROR_INVALID_SYNCHRONIZATION_OBJECT", *_OURS),
    0x7800000C: ("ERROR_INVALID_ENUMERATION", *_OURS),
    0x7800000D: ("ERROR_UNSUPPORTED_ENUMERATION", *_UNSUPPORTED),
    0x7800000E: ("ERROR_UNSUPPORTED_IMAGE_FORMAT", *_UNSUPPORTED),
    0x7800000F: ("ERROR_INVALID_NATIVE_BINARY", *_OURS),
    0x78000010: ("ERROR_INVALID_GLOBAL_NAME", *_OURS),
    0x78000011: ("ERROR_INVALID_KERNEL_NAME", *_OURS),
    0x78000012: ("ERROR_INVALID_FUNCTION_NAME", *_OURS),
    0x78000013: ("ERROR_INVALID_GROUP_SIZE_DIMENSION", *_OURS),
    0x78000014: ("ERROR_INVALID_GLOBAL_WIDTH_DIMENSION", *_OURS),
    0x78000015: ("ERROR_INVALID_KERNEL_ARGUMENT_INDEX", *_OURS),
    0x78000016: ("ERROR_INVALID_KERNEL_ARGUMENT_SIZE", *_OURS),
    0x78000017: ("ERROR_INVALID_KERNEL_ATTRIBUTE_VALUE", *_OURS),
    0x78000018: ("ERROR_INVALID_MODULE_UNLINKED", *_OURS),
    0x78000019: ("ERROR_INVALID_COMMAND_LIST_TYPE", *_OURS),
    0x7800001A: ("ERROR_OVERLAPPING_REGIONS", *_OURS),
    0x7800001B: ("WARNING_ACTION_REQUIRED", *_OURS),
    0x7FF00001: ("EXP_ERROR_DEVICE_IS_NOT_VERTEX", *_OURS),
    0x7FF00002: ("EXP_ERROR_VERTEX_IS_NOT_DEVICE", *_OURS),
    0x7FF00003: ("EXP_ERROR_REMOTE_DEVICE", *_OURS),
    0x7FFFFFFE: ("ERROR_UNKNOWN", *_LOST),
}
"""Name, exception class and hint of every ze_result_t but success; after ERROR_UNKNOWN nothing can be relied on."""


def check(
    result: int,
    operation: str,
    *,
    device: str = "",
    requested: int = 0,
    free: int = -1,
    kernel: str = "",
    log: str = "",
) -> None:
    """Raise the exception of a result; 0 is success. requested and free: bytes, of an allocation; kernel and log: of a
    build."""
    if result == 0:
        return
    name, kind, hint = TABLE.get(result, ("", *_OURS))
    message = f"{operation} failed"
    if kind is OutOfMemoryError:
        message = f"cannot allocate {requested:,} bytes" if requested else "out of memory"
    if kind is KernelCompileError:
        message = f"{kernel or 'a kernel'} does not compile"
    raise kind(
        message,
        backend=BACKEND,
        device=device,
        operation=operation,
        code=f"ZE_RESULT_{name} (0x{result:08x})" if name else f"ze_result_t 0x{result:08x}",
        hint=hint,
        requested=requested,
        free=free,
        kernel=kernel,
        log=log,
    )
