"""What numba and Python raise, as errors of bitnet: one table, one place.

The driver of a GPU answers with numbers; its plugin has an enum of them and a function `check(status, operation)`.
Here the driver is Python, so its status is an exception.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bitnet_core.errors import GpuError, KernelCompileError, LaunchError, OutOfMemoryError
from numba.core.errors import NumbaError

# --8<-- [start:table]
TABLE: tuple[tuple[type[Exception], type[GpuError], str], ...] = (
    (MemoryError, OutOfMemoryError, "Use a smaller context or close other programs"),
    (NumbaError, KernelCompileError, "Report this with the compiler's log"),
    (Exception, LaunchError, "Report this with the kernel's name"),
)
"""(what is raised, what it becomes, what to do): the first line that fits."""


@contextmanager
def check(operation: str, *, kernel: str = "", requested: int = 0, free: int = -1) -> Iterator[None]:
    """Turn what the block raises into the error that TABLE gives, with its cause."""
    try:
        yield
    except Exception as exc:
        kind, hint = next((kind, hint) for raised, kind, hint in TABLE if isinstance(exc, raised))
        common = {"backend": "toy", "operation": operation, "code": type(exc).__name__, "hint": hint}
        if kind is OutOfMemoryError:
            message = f"cannot allocate {requested:,} bytes, {free:,} are free"
            raise OutOfMemoryError(message, requested=requested, free=free, **common) from exc
        if kind is KernelCompileError:
            raise KernelCompileError(f"{kernel} does not compile", kernel=kernel, log=str(exc), **common) from exc
        raise kind(f"{kernel} failed: {exc}", **common) from exc


# --8<-- [end:table]
