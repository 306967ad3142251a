"""The one place where OpenCL's status codes become exceptions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyopencl as cl
from bitnet_core.errors import (
    BackendUnavailableError,
    DeviceLostError,
    GpuError,
    LaunchError,
    OutOfMemoryError,
    UnsupportedError,
)
from bitnet_core.hal.failures import failure

BACKEND = "opencl"
OUT_OF_RESOURCES, INVALID_OPERATION = -5, -59
_NAMES = {value: name for name, value in vars(cl.status_code).items() if isinstance(value, int)}
OWN_NAMES = {-1001: "PLATFORM_NOT_FOUND_KHR", -9999: "NVIDIA_ILLEGAL_BUFFER_ACCESS"}
"""Of codes that pyopencl has no names for."""

_NO_DRIVER = (BackendUnavailableError, "Install the vendor's OpenCL driver, or bitnet-opencl[pocl] for the CPU")
_LOST = (DeviceLostError, "The device was reset or removed; open it again or choose another")
_NO_MEMORY = (OutOfMemoryError, "Use a smaller context or model, or close other programs that use the device")
_LAUNCH = (LaunchError, "Update the driver; if it stays, report this with the output of `bitnet doctor`")

TABLE: dict[int, tuple[type[GpuError], str]] = {
    -1: _NO_DRIVER,  # DEVICE_NOT_FOUND
    -1001: _NO_DRIVER,
    -3: (UnsupportedError, "This driver cannot compile kernels; install a complete one"),
    -2: _LOST,  # DEVICE_NOT_AVAILABLE
    -33: _LOST,  # INVALID_DEVICE
    -34: _LOST,  # INVALID_CONTEXT
    -36: _LOST,  # INVALID_COMMAND_QUEUE
    -9999: _LOST,
    -4: _NO_MEMORY,  # MEM_OBJECT_ALLOCATION_FAILURE
    -6: _NO_MEMORY,  # OUT_OF_HOST_MEMORY
    -61: _NO_MEMORY,  # INVALID_BUFFER_SIZE
    OUT_OF_RESOURCES: _LAUNCH,
}
"""Exception class and hint of a status; every other one is a LaunchError."""


def status_name(status: int) -> str:
    """ "CL_OUT_OF_RESOURCES (-5)"."""
    name = OWN_NAMES.get(status) or _NAMES.get(status)
    return f"CL_{name} ({status})" if name else f"CL status {status}"


def check(status: int, operation: str, *, device: str = "", requested: int = 0, free: int = -1) -> None:
    """Raise the exception of an OpenCL status; 0 is success. `requested` and `free` are bytes, for allocations."""
    if status == 0:
        return
    kind, hint = TABLE.get(status, _LAUNCH)
    if requested and status == OUT_OF_RESOURCES:  # what some drivers say of a full device
        kind, hint = _NO_MEMORY
    raise failure(
        kind,
        operation,
        backend=BACKEND,
        device=device,
        code=status_name(status),
        hint=hint,
        requested=requested,
        free=free,
    )


@contextmanager
def checked(operation: str, *, device: str = "", requested: int = 0, free: int = -1) -> Iterator[None]:
    """Turn what pyopencl raises inside the block into the exceptions of `check`."""
    try:
        yield
    except cl.Error as exc:
        status = getattr(exc, "code", None)
        try:
            code = status if isinstance(status, int) and status else INVALID_OPERATION
            check(code, operation, device=device, requested=requested, free=free)
        except GpuError as error:
            raise error from exc
