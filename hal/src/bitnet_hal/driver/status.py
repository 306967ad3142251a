"""Mapping of driver status codes to exceptions, using each plugin's errors.toml."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypedDict, Unpack

from bitnet_hal import errors
from bitnet_hal.driver.toml_tables import table
from bitnet_hal.errors import (
    BackendUnavailableError,
    DeviceLostError,
    GpuError,
    GpuTimeoutError,
    KernelCompileError,
    LaunchError,
    OutOfMemoryError,
    UnsupportedError,
)

HINTS: dict[type[GpuError], str] = {
    BackendUnavailableError: "Check the driver with its own tools, or use another device; `bitnet doctor` shows more",
    DeviceLostError: "The device was reset or removed; open it again or choose another",
    GpuTimeoutError: "Set BITNET_GPU_TIMEOUT to more seconds, or choose another device",
    KernelCompileError: "Update the driver; the compiler's output is in the log of this error",
    LaunchError: "Update the driver; if the error persists, report it with the output of `bitnet doctor --json`",
    OutOfMemoryError: "Use a smaller context or model, or close other programs that use the device",
    UnsupportedError: "Update the driver",
}
"""Default hints, by class of error."""
OPERATIONS: Mapping[str, type[GpuError]] = {
    "list devices": BackendUnavailableError,
    "open": BackendUnavailableError,
    "alloc": OutOfMemoryError,
    "compile": KernelCompileError,
}
"""Class of error by operation, for a status without a class; LaunchError for any other operation."""


class StatusInfo(NamedTuple):
    """The meaning of a driver's status.

    kind: class of error, None if the operation determines it. hint: advice for the user, "" for the default. name: the
    vendor's name of a numeric status.
    """

    kind: type[GpuError] | None
    hint: str
    name: str = ""


def known(module: str) -> dict[str, StatusInfo]:
    """Load errors.toml beside a module (its `__file__`): the StatusInfo by status.

    A row is `status = ["LaunchError", hint, name]` with a class of `bitnet_hal.errors`, or "" if the operation
    determines the class.
    """
    rows = table(module, "errors.toml")
    return {
        status: StatusInfo(getattr(errors, kind) if kind else None, *more) for status, (kind, *more) in rows.items()
    }


class ErrorDetails(TypedDict, total=False):
    """Details beside the status. requested, free: bytes of an allocation. kernel, log: of a build."""

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
    **details: Unpack[ErrorDetails],
) -> GpuError:
    """Build the exception for a failed operation.

    code: the status in the vendor's spelling. said: the driver's message. "" selects a default.
    """
    message = said or f"{operation} failed"
    if issubclass(kind, OutOfMemoryError):
        requested = details.get("requested", 0)
        free = details.get("free", -1)
        message = f"cannot allocate {requested:,} bytes" if requested else "out of memory"
        message += f", {free:,} are free" if requested and free >= 0 else ""
    if issubclass(kind, GpuTimeoutError):
        message = f"{operation} took too long"
    if issubclass(kind, KernelCompileError):
        message = f"{details.get('kernel') or 'a kernel'} does not compile"
    hint = hint or HINTS.get(kind, "")
    return kind(message, backend=backend, device=device, operation=operation, code=code, hint=hint, **details)


class StatusCodes:
    """The status codes of a driver API (0 is success).

    module: its errors.toml has the rows. spelled: formats a status and its name ("" if unknown) as the vendor does.
    operations: class of error by operation, for a status without a class.
    """

    def __init__(
        self,
        module: str,
        backend: str,
        spelled: Callable[[int, str], str],
        operations: Mapping[str, type[GpuError]] = OPERATIONS,
    ) -> None:
        self.table = {int(status, 0): row for status, row in known(module).items()}
        self._backend = backend
        self._spelled = spelled
        self._operations = operations

    def error(self, status: int, operation: str, **details: Unpack[ErrorDetails]) -> GpuError:
        """Build the exception for a status code; without a compiler's log the code is used as the log."""
        kind, hint, name = self.table.get(status, StatusInfo(None, ""))
        kind = kind or self._operations.get(operation, LaunchError)
        code = self._spelled(status, name)
        details.setdefault("log", code)
        return failure(kind, operation, backend=self._backend, code=code, hint=hint, **details)

    def check(self, status: int, operation: str, **details: Unpack[ErrorDetails]) -> None:
        """Raise the exception for a status code unless it is 0."""
        if status:
            raise self.error(status, operation, **details)
