"""Native failures as errors of the HAL: the one place where they are translated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bitnet_hal.errors import GpuError, LaunchError, OutOfMemoryError, UnsupportedError

from bitnet_cpu import _native

ERRORS: dict[type[Exception], type[GpuError]] = {
    _native.LaunchFault: LaunchError,
    _native.Unsupported: UnsupportedError,
}
"""Native exception -> HAL error; a failed allocation (MemoryError) becomes OutOfMemoryError."""


@contextmanager
def native(operation: str, requested: int = 0) -> Iterator[None]:
    """Translate what the native module raises inside the block. requested: bytes, for allocations."""
    try:
        yield
    except tuple(ERRORS) as exc:
        raise ERRORS[type(exc)](
            str(exc),
            backend="cpu",
            operation=operation,
            code=type(exc).__name__,
            hint="Core should have refused this launch: report it with the output of `bitnet doctor --json`",
        ) from exc
    except MemoryError as exc:
        raise OutOfMemoryError(
            "the system has no memory left",
            requested=requested,
            backend="cpu",
            operation=operation,
            hint="Use a smaller context or close other programs",
        ) from exc
