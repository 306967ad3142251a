"""The one place where OpenCL's status codes become exceptions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Unpack

import pyopencl as cl
from bitnet_core.errors import (
    BackendUnavailableError,
    DeviceLostError,
    GpuError,
    KernelCompileError,
    LaunchError,
    OutOfMemoryError,
    UnsupportedError,
)
from bitnet_core.hal.failures import Details, failure

BACKEND = "opencl"
OUT_OF_RESOURCES, BUILD_FAILURE, INVALID_OPERATION = -5, -11, -59
_NAMES = {value: name for name, value in vars(cl.status_code).items() if isinstance(value, int)}
OWN_NAMES = {-1001: "PLATFORM_NOT_FOUND_KHR", -9999: "NVIDIA_ILLEGAL_BUFFER_ACCESS"}
"""Of codes that pyopencl has no names for."""

_NO_DRIVER = (BackendUnavailableError, "Install the vendor's OpenCL driver, or bitnet-opencl[pocl] for the CPU")

TABLE: dict[int, tuple[type[GpuError], str]] = {
    -1: _NO_DRIVER,  # DEVICE_NOT_FOUND
    -1001: _NO_DRIVER,
    -3: (UnsupportedError, "This driver cannot compile kernels; install a complete one"),
    -2: (DeviceLostError, ""),  # DEVICE_NOT_AVAILABLE
    -33: (DeviceLostError, ""),  # INVALID_DEVICE
    -34: (DeviceLostError, ""),  # INVALID_CONTEXT
    -36: (DeviceLostError, ""),  # INVALID_COMMAND_QUEUE
    -9999: (DeviceLostError, ""),
    -4: (OutOfMemoryError, ""),  # MEM_OBJECT_ALLOCATION_FAILURE
    -6: (OutOfMemoryError, ""),  # OUT_OF_HOST_MEMORY
    -61: (OutOfMemoryError, ""),  # INVALID_BUFFER_SIZE
    OUT_OF_RESOURCES: (LaunchError, ""),
    BUILD_FAILURE: (KernelCompileError, ""),
}
"""Exception class of a status, and a hint where core knows no better one; every other one is a LaunchError."""


def status_name(status: int) -> str:
    """ "CL_OUT_OF_RESOURCES (-5)"."""
    name = OWN_NAMES.get(status) or _NAMES.get(status)
    return f"CL_{name} ({status})" if name else f"CL status {status}"


def check(status: int, operation: str, device: str = "", **details: Unpack[Details]) -> None:
    """Raise the exception of an OpenCL status; 0 is success."""
    if status == 0:
        return
    kind, hint = TABLE.get(status, (LaunchError, ""))
    if details.get("requested") and status == OUT_OF_RESOURCES:  # what some drivers say of a full device
        kind = OutOfMemoryError
    raise failure(kind, operation, backend=BACKEND, device=device, code=status_name(status), hint=hint, **details)


@contextmanager
def checked(operation: str, device: str = "", **details: Unpack[Details]) -> Iterator[None]:
    """Turn what pyopencl raises inside the block into the exceptions of `check`; its text is the log of a build."""
    try:
        yield
    except cl.Error as exc:
        status = getattr(exc, "code", None)
        code = status if isinstance(status, int) and status else INVALID_OPERATION
        if code == BUILD_FAILURE:
            details["log"] = str(exc)
        try:
            check(code, operation, device, **details)
        except GpuError as error:
            raise error from exc
