"""A driver's status as an exception: what the tables of all plugins have in common."""

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
    DeviceLostError: "The device was reset or removed; open it again or choose another",
    GpuTimeoutError: "Set BITNET_GPU_TIMEOUT to more seconds, or choose another device",
    KernelCompileError: "Update the driver; the compiler's text is in the log of this error",
    LaunchError: "Update the driver; if it stays, report this with the output of `bitnet doctor --json`",
    OutOfMemoryError: "Use a smaller context or model, or close other programs that use the device",
    UnsupportedError: "Update the driver",
}
"""What to do, where a plugin knows nothing better."""
OPERATIONS: Mapping[str, type[GpuError]] = {
    "list devices": BackendUnavailableError,
    "open": BackendUnavailableError,
    "alloc": OutOfMemoryError,
    "compile": KernelCompileError,
}
"""What the failure of an operation is called where its status does not say; of any other it is a LaunchError."""


class StatusInfo(NamedTuple):
    """What a driver's status means. kind: None where the operation decides; hint: what to do; name: the vendor's for a
    status that is a number."""

    kind: type[GpuError] | None
    hint: str
    name: str = ""


def known(module: str) -> dict[str, StatusInfo]:
    """The rows of errors.toml beside a module (its `__file__`), by status: `status = ["LaunchError", hint, name]`, with
    a class of `bitnet_hal.errors`, or "" where the operation decides, and what else Known has."""
    rows = table(module, "errors.toml")
    return {
        status: StatusInfo(getattr(errors, kind) if kind else None, *more) for status, (kind, *more) in rows.items()
    }


class ErrorDetails(TypedDict, total=False):
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
    **details: Unpack[ErrorDetails],
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


class StatusCodes:
    """What the numbers mean that an API returns, of which 0 is success.

    table: `known` of the module, by number. spelled: a status and its name ("" for one that is not in the table) as the
    vendor writes them. operations: what a failure is called where no row says so.
    """

    def __init__(
        self,
        module: str,
        backend: str,
        spelled: Callable[[int, str], str],
        operations: Mapping[str, type[GpuError]] = OPERATIONS,
    ) -> None:
        self.table = {int(status, 0): row for status, row in known(module).items()}
        self._backend, self._spelled, self._operations = backend, spelled, operations

    def error(self, status: int, operation: str, **details: Unpack[ErrorDetails]) -> GpuError:
        """The exception of a status, which is the log of a build too where there is no other."""
        kind, hint, name = self.table.get(status, StatusInfo(None, ""))
        kind, code = kind or self._operations.get(operation, LaunchError), self._spelled(status, name)
        details.setdefault("log", code)
        return failure(kind, operation, backend=self._backend, code=code, hint=hint, **details)

    def check(self, status: int, operation: str, **details: Unpack[ErrorDetails]) -> None:
        """Raise the exception of a status, unless it is success."""
        if status:
            raise self.error(status, operation, **details)
