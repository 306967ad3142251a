"""Mapping of exceptions of numba and Python to errors of bitnet.

The driver of a GPU returns status codes; its plugin has an enum of them and a function `check(status, operation)`. Here
the driver is Python, so its status is an exception.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bitnet_hal.errors import GpuError, KernelCompileError, LaunchError, OutOfMemoryError
from numba.core.errors import NumbaError

# --8<-- [start:table]
_FULL = "cannot allocate {requested:,} bytes, {free:,} are free"
TABLE: tuple[tuple[type[Exception], type[GpuError], str, str], ...] = (
    (MemoryError, OutOfMemoryError, _FULL, "Use a smaller context or close other programs"),
    (
        NumbaError,
        KernelCompileError,
        "{kernel} does not compile",
        "Report this with the compiler's log and `bitnet doctor --json`",
    ),
    (Exception, LaunchError, "{kernel} failed: {exc}", "Report this with the output of `bitnet doctor --json`"),
)
"""Rows (exception, class of error, message, hint); the first matching row applies."""


@contextmanager
def check(operation: str, *, kernel: str = "", requested: int = 0, free: int = -1) -> Iterator[None]:
    """Convert exceptions of the block by TABLE, keeping them as the cause. requested, free: bytes."""
    try:
        yield
    except Exception as exc:
        kind, message, hint = next(entry[1:] for entry in TABLE if isinstance(exc, entry[0]))
        raise kind(
            message.format(kernel=kernel, requested=requested, free=free, exc=exc),
            backend="toy",
            operation=operation,
            code=type(exc).__name__,
            hint=hint,
            requested=requested,
            free=free,
            kernel=kernel,
            log=str(exc),
        ) from exc


# --8<-- [end:table]
