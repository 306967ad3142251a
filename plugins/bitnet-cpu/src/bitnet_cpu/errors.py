"""Conversion of native failures to errors of the contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bitnet_hal.errors import GpuError, LaunchError, OutOfMemoryError, UnsupportedError

from bitnet_cpu import _native

ERRORS: dict[type[Exception], type[GpuError]] = {
    _native.LaunchFault: LaunchError,
    _native.Unsupported: UnsupportedError,
}
"""The error class by native exception; a failed allocation (MemoryError) becomes OutOfMemoryError."""

FAILURES: tuple[type[Exception], ...] = (*ERRORS, MemoryError)
"""The exceptions of the native module."""


@contextmanager
def native(operation: str, requested: int = 0) -> Iterator[None]:
    """Convert the native module's exceptions inside the block. requested: bytes, for allocations."""
    try:
        yield
    except FAILURES as exc:
        raise translated(exc, operation, requested) from exc


def translated(error: Exception, operation: str, requested: int = 0) -> GpuError:
    """Return the error for one of FAILURES. requested: bytes, for allocations."""
    if isinstance(error, MemoryError):
        return OutOfMemoryError(
            "the system has no memory left",
            requested=requested,
            backend="cpu",
            operation=operation,
            hint="Use a smaller model or context, or close other programs",
        )
    return ERRORS[type(error)](
        str(error),
        backend="cpu",
        operation=operation,
        code=type(error).__name__,
        hint="Core should have refused this launch: report it with the output of `bitnet doctor --json`",
    )
