"""Conversion of OpenCL's status codes to exceptions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Unpack

import pyopencl as cl
from bitnet_hal.errors import GpuError, OutOfMemoryError
from bitnet_hal.plugin import ErrorDetails, StatusCodes

BACKEND = "opencl"
BUILD_FAILURE = -11
INVALID_OPERATION = -59
STATUSES = StatusCodes(
    __file__,
    BACKEND,
    lambda status, name: f"CL_{name} ({status})" if name else f"CL status {status}",
    dict.fromkeys(("alloc", "wrap"), OutOfMemoryError),
)
check = STATUSES.check


def converted(error: cl.Error, operation: str, **details: Unpack[ErrorDetails]) -> GpuError:
    """Return the exception for an error of pyopencl; after a failed build its text is the compiler's log."""
    status = getattr(error, "code", None) or INVALID_OPERATION
    if status == BUILD_FAILURE:
        details["log"] = str(error)
    return STATUSES.error(status, operation, **details)


@contextmanager
def checked(operation: str, **details: Unpack[ErrorDetails]) -> Iterator[None]:
    """Convert pyopencl's exceptions inside the block."""
    try:
        yield
    except cl.Error as error:
        raise converted(error, operation, **details) from error
