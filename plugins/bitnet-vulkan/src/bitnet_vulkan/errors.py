"""The one place where a VkResult becomes an exception."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from bitnet_core.errors import BackendUnavailableError, GpuError, KernelCompileError, LaunchError, OutOfMemoryError
from bitnet_core.hal.failures import Details, Known, failure, known

BACKEND = "vulkan"
SUCCESS, TIMEOUT, TOO_MANY_OBJECTS, DEVICE_LOST = 0, 2, -10, -4
TABLE = {int(status): row for status, row in known(Path(__file__).with_name("errors.toml")).items()}
_OPERATIONS: dict[str, type[GpuError]] = {
    "list devices": BackendUnavailableError,
    "open": BackendUnavailableError,
    "alloc": OutOfMemoryError,
    "compile": KernelCompileError,
}
"""What a failure is called where no row says so; else it is a LaunchError."""


def check(status: int, operation: str, **details: Unpack[Details]) -> None:
    """Return on success; raise the exception of the status otherwise."""
    if status != SUCCESS:
        kind, hint, name = TABLE.get(status, Known(None, "", "VkResult"))
        kind, code = kind or _OPERATIONS.get(operation, LaunchError), f"{name} ({status})"
        details.setdefault("log", code)
        raise failure(kind, operation, backend=BACKEND, code=code, hint=hint, **details)
