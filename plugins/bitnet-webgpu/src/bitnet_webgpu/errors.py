"""Conversion of wgpu's failures to exceptions of bitnet."""

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
"""The exception class by operation, for failures without a row in errors.toml; any other is a LaunchError."""


def converted(error: Exception, operation: str, device: str = "", **details: Unpack[ErrorDetails]) -> GpuError:
    """Return bitnet's exception for an exception of wgpu."""
    text = str(error)
    code = type(error).__name__
    details["log"] = text
    by_text = next((row for words, row in TABLE.items() if words in text.lower()), None)
    kind, hint, _ = by_text or TABLE.get(code, TABLE["GPUError"])
    last_line = (text.strip().splitlines() or [""])[-1].strip()  # the cause of all lines before it
    return failure(
        kind or _OPERATIONS.get(operation, LaunchError),
        operation,
        backend=BACKEND,
        device=device,
        code=code,
        hint=hint,
        said=last_line,
        **details,
    )


def raised() -> tuple[type[Exception], ...]:
    """Return the classes of wgpu's exceptions."""
    return RuntimeError, module().GPUError


@contextmanager
def checked(operation: str, device: str = "", **details: Unpack[ErrorDetails]) -> Iterator[None]:
    """Convert wgpu's exceptions inside the block."""
    try:
        yield
    except GpuError:
        raise
    except raised() as error:
        raise converted(error, operation, device, **details) from error
