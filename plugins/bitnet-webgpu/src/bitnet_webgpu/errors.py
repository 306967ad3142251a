"""The one place where a failure of wgpu becomes an exception of bitnet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Unpack

from bitnet_hal.driver.status import known
from bitnet_hal.errors import BackendUnavailableError, GpuError, KernelCompileError, LaunchError, OutOfMemoryError
from bitnet_hal.plugin import ErrorDetails, failure

from bitnet_webgpu.driver import BACKEND, module

TABLE = known(__file__)
_OPERATIONS: dict[str, type[GpuError]] = {
    "open": BackendUnavailableError,
    "alloc": OutOfMemoryError,
    "compile": KernelCompileError,
}
"""What a failure is called where no row says so; else it is a LaunchError."""


def converted(error: Exception, operation: str, device: str = "", **details: Unpack[ErrorDetails]) -> GpuError:
    """The exception of bitnet for one of wgpu's."""
    text, code = str(error), type(error).__name__
    details["log"] = text
    told = next((row for words, row in TABLE.items() if words in text.lower()), None)
    kind, hint, _ = told or TABLE.get(code, TABLE["GPUError"])
    return failure(
        kind or _OPERATIONS.get(operation, LaunchError),
        operation,
        backend=BACKEND,
        device=device,
        code=code,
        hint=hint,
        said=(text.strip().splitlines() or [""])[-1].strip(),  # wgpu ends with the cause of all that it says before
        **details,
    )


def raised() -> tuple[type[Exception], ...]:
    """What wgpu raises."""
    return RuntimeError, module().GPUError


@contextmanager
def checked(operation: str, device: str = "", **details: Unpack[ErrorDetails]) -> Iterator[None]:
    """Raise bitnet's exception for wgpu's."""
    try:
        yield
    except GpuError:
        raise
    except raised() as error:
        raise converted(error, operation, device, **details) from error
