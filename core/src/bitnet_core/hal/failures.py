"""A driver's status as an exception: what the tables of all plugins have in common."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NamedTuple, TypedDict, Unpack

from bitnet_core import errors
from bitnet_core.errors import (
    DeviceLostError,
    GpuError,
    GpuTimeoutError,
    KernelCompileError,
    LaunchError,
    OutOfMemoryError,
    UnsupportedError,
)

HINTS: dict[type[GpuError], str] = {
    DeviceLostError: "The device was reset or removed; open it again or choose another",
    GpuTimeoutError: "Set BITNET_GPU_TIMEOUT to more seconds, or choose another device",
    KernelCompileError: "Update the driver; the compiler's text is in the log of this error",
    LaunchError: "Update the driver; if it stays, report this with the output of `bitnet doctor`",
    OutOfMemoryError: "Use a smaller context or model, or close other programs that use the device",
    UnsupportedError: "Update the driver",
}
"""What to do, where a plugin knows nothing better."""


class Known(NamedTuple):
    """What a driver's status means. kind: None where the operation decides; hint: what to do; name: the vendor's for a
    status that is a number."""

    kind: type[GpuError] | None
    hint: str
    name: str = ""


def known(file: Path) -> dict[str, Known]:
    """The rows of a TOML file, by status: `status = ["LaunchError", hint, name]`, a class of `bitnet_core.errors` or ""
    where the operation decides, and what else Known has."""
    rows = tomllib.loads(file.read_text(encoding="utf-8"))
    return {status: Known(getattr(errors, kind) if kind else None, *more) for status, (kind, *more) in rows.items()}


class Details(TypedDict, total=False):
    """What is known beside the status. requested, free: bytes, of an allocation; kernel, log: of a build."""

    requested: int
    free: int
    kernel: str
    log: str


def failure(
    kind: type[GpuError],
    operation: str,
    *,
    backend: str,
    code: str = "",
    device: str = "",
    hint: str = "",
    said: str = "",
    **details: Unpack[Details],
) -> GpuError:
    """The exception to raise where `operation` gave a status. code: the status as the vendor spells it; said: the
    driver's words, where it has some."""
    message = said or f"{operation} failed"
    if issubclass(kind, OutOfMemoryError):
        requested, free = details.get("requested", 0), details.get("free", -1)
        message = f"cannot allocate {requested:,} bytes" if requested else "out of memory"
        message += f", {free:,} are free" if requested and free >= 0 else ""
    if issubclass(kind, GpuTimeoutError):
        message = f"{operation} took too long"
    if issubclass(kind, KernelCompileError):
        message = f"{details.get('kernel') or 'a kernel'} does not compile"
    hint = hint or HINTS.get(kind, "")
    return kind(message, backend=backend, device=device, operation=operation, code=code, hint=hint, **details)
