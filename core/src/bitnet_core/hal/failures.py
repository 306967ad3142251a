"""The error of a driver's failure, worded alike for every backend."""

from __future__ import annotations

from bitnet_core.errors import GpuError, KernelCompileError, OutOfMemoryError


def failure(
    kind: type[GpuError],
    operation: str,
    *,
    backend: str,
    device: str = "",
    code: str = "",
    hint: str = "",
    said: str = "",
    requested: int = 0,
    free: int = -1,
    kernel: str = "",
    log: str = "",
) -> GpuError:
    """An error of `kind` for the caller to raise. The message of an OutOfMemoryError says how many bytes were
    `requested` and are `free`, that of a KernelCompileError which `kernel`; others say what the driver `said`."""
    message = said or f"{operation} failed"
    if issubclass(kind, OutOfMemoryError):
        message = f"{requested:,} bytes do not fit" if requested else "out of memory"
        message += f", {free:,} are free" if requested and free >= 0 else ""
    elif issubclass(kind, KernelCompileError):
        message = f"kernel {kernel} does not build"
    return kind(
        message,
        backend=backend,
        device=device,
        operation=operation,
        code=code,
        hint=hint,
        requested=requested,
        free=free,
        kernel=kernel,
        log=log,
    )
