"""OpenCL status codes and the one place where they become exceptions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import pyopencl as cl
from bitnet_core.errors import (
    BackendUnavailableError,
    DeviceLostError,
    GpuError,
    LaunchError,
    OutOfMemoryError,
    UnsupportedError,
)

BACKEND = "opencl"


class Status(IntEnum):
    """Status codes of the OpenCL API, without their CL_ prefix."""

    DEVICE_NOT_FOUND = -1
    DEVICE_NOT_AVAILABLE = -2
    COMPILER_NOT_AVAILABLE = -3
    MEM_OBJECT_ALLOCATION_FAILURE = -4
    OUT_OF_RESOURCES = -5
    OUT_OF_HOST_MEMORY = -6
    PROFILING_INFO_NOT_AVAILABLE = -7
    MEM_COPY_OVERLAP = -8
    BUILD_PROGRAM_FAILURE = -11
    MAP_FAILURE = -12
    MISALIGNED_SUB_BUFFER_OFFSET = -13
    EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST = -14
    INVALID_VALUE = -30
    INVALID_PLATFORM = -32
    INVALID_DEVICE = -33
    INVALID_CONTEXT = -34
    INVALID_COMMAND_QUEUE = -36
    INVALID_HOST_PTR = -37
    INVALID_MEM_OBJECT = -38
    INVALID_BINARY = -42
    INVALID_BUILD_OPTIONS = -43
    INVALID_PROGRAM = -44
    INVALID_PROGRAM_EXECUTABLE = -45
    INVALID_KERNEL_NAME = -46
    INVALID_KERNEL = -48
    INVALID_ARG_INDEX = -49
    INVALID_ARG_VALUE = -50
    INVALID_ARG_SIZE = -51
    INVALID_KERNEL_ARGS = -52
    INVALID_WORK_DIMENSION = -53
    INVALID_WORK_GROUP_SIZE = -54
    INVALID_WORK_ITEM_SIZE = -55
    INVALID_GLOBAL_OFFSET = -56
    INVALID_EVENT = -58
    INVALID_OPERATION = -59
    INVALID_BUFFER_SIZE = -61
    INVALID_GLOBAL_WORK_SIZE = -63
    PLATFORM_NOT_FOUND_KHR = -1001
    NVIDIA_ILLEGAL_BUFFER_ACCESS = -9999


_NO_DRIVER = (BackendUnavailableError, "Install the vendor's OpenCL driver, or bitnet-opencl[pocl] for the CPU")
_LOST = (DeviceLostError, "The device was reset or removed; open it again or choose another")
_NO_MEMORY = (OutOfMemoryError, "Use a smaller context or model, or close other programs that use the device")
_LAUNCH = (LaunchError, "Update the driver; if it stays, report this with the output of `bitnet doctor`")

TABLE: dict[Status, tuple[type[GpuError], str]] = {
    Status.DEVICE_NOT_FOUND: _NO_DRIVER,
    Status.PLATFORM_NOT_FOUND_KHR: _NO_DRIVER,
    Status.COMPILER_NOT_AVAILABLE: (UnsupportedError, "This driver cannot compile kernels; install a complete one"),
    Status.DEVICE_NOT_AVAILABLE: _LOST,
    Status.INVALID_DEVICE: _LOST,
    Status.INVALID_CONTEXT: _LOST,
    Status.INVALID_COMMAND_QUEUE: _LOST,
    Status.NVIDIA_ILLEGAL_BUFFER_ACCESS: _LOST,
    Status.MEM_OBJECT_ALLOCATION_FAILURE: _NO_MEMORY,
    Status.OUT_OF_HOST_MEMORY: _NO_MEMORY,
    Status.INVALID_BUFFER_SIZE: _NO_MEMORY,
    Status.OUT_OF_RESOURCES: _LAUNCH,
}
"""Exception class and hint of a status; every other one is a LaunchError."""


def check(status: int, operation: str, *, device: str = "", requested: int = 0, free: int = -1) -> None:
    """Raise the exception of an OpenCL status; 0 is success. `requested` and `free` are bytes, for allocations."""
    if status == 0:
        return
    known = status in Status._value2member_map_
    code = f"CL_{Status(status).name} ({status})" if known else f"CL status {status}"
    kind, hint = TABLE.get(Status(status), _LAUNCH) if known else _LAUNCH
    if requested and status == Status.OUT_OF_RESOURCES:  # what some drivers say of a full device
        kind, hint = _NO_MEMORY
    message = f"{operation} failed"
    if kind is OutOfMemoryError:
        raise OutOfMemoryError(
            f"cannot allocate {requested:,} bytes" if requested else "out of memory",
            requested=requested,
            free=free,
            backend=BACKEND,
            device=device,
            operation=operation,
            code=code,
            hint=hint,
        )
    raise kind(message, backend=BACKEND, device=device, operation=operation, code=code, hint=hint)


@contextmanager
def checked(operation: str, *, device: str = "", requested: int = 0, free: int = -1) -> Iterator[None]:
    """Turn what pyopencl raises inside the block into the exceptions of `check`."""
    try:
        yield
    except cl.Error as exc:
        status = getattr(exc, "code", None)
        try:
            check(
                status if isinstance(status, int) else Status.INVALID_OPERATION,
                operation,
                device=device,
                requested=requested,
                free=free,
            )
        except GpuError as error:
            raise error from exc
        raise
