"""The exceptions of bitnet and their exit codes on the command line.

BitnetError                       1
├── UsageError                    2   (also ValueError) an argument is invalid
├── StrictModeError               8
├── CutOffError                   15  a limit cut off output that must be complete
└── GpuError                      1   .backend .device .operation .code .hint
    ├── BackendUnavailableError   11  driver, library or device absent
    ├── BackendIncompatibleError  11  api version or hook signature
    ├── DeviceNotFoundError       11  (also LookupError)
    ├── OutOfMemoryError          13  (also MemoryError) .requested .free
    ├── KernelCompileError        1   .kernel .log
    ├── LaunchError               1
    ├── UnsupportedError          1   (also NotImplementedError)
    ├── GpuTimeoutError           1   (also TimeoutError)
    └── DeviceLostError           12  the device object is dead
"""

from __future__ import annotations

from typing import ClassVar


def short(value: object) -> str:
    """Return the repr of a value, cut to 60 characters, for messages: text from a file may have any length."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class BitnetError(Exception):
    """Base of every error that bitnet raises on purpose; its text is written for users."""

    exit_code: ClassVar[int] = 1


class UsageError(BitnetError, ValueError):
    """An argument, option or environment variable is invalid."""

    exit_code = 2


class StrictModeError(BitnetError):
    """BITNET_STRICT_MODE or BITNET_STRICT_NO_FAKE_GPU forbids the request."""

    exit_code = 8


class CutOffError(BitnetError):
    """A limit cut off output that is useless unless complete."""

    exit_code = 15


class GpuError(BitnetError):
    """An operation of a compute device failed.

    backend: name of the backend ("opencl"). device: name of the device, "" if none was open.
    operation: the operation that failed. hint: advice for the user.
    code: the native status in the vendor's spelling ("CL_OUT_OF_RESOURCES (-5)"), "" if there is none.
    requested, free: bytes, set by OutOfMemoryError; free is -1 if unknown.
    kernel, log: set by KernelCompileError and LaunchError: the kernel's name and the compiler's output.
    """

    usual_operation: ClassVar[str] = ""

    def __init__(
        self,
        message: str,
        *,
        backend: str = "",
        device: str = "",
        operation: str = "",
        code: str = "",
        hint: str = "",
        requested: int = 0,
        free: int = -1,
        kernel: str = "",
        log: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.backend = backend
        self.device = device
        self.operation = operation or self.usual_operation
        self.code = code
        self.hint = hint
        self.requested = requested
        self.free = free
        self.kernel = kernel
        self.log = log

    def __str__(self) -> str:
        where = " ".join(part for part in (self.backend, self.device) if part)
        text = f"{where}: {self.message}" if where else self.message
        if self.operation:
            text += f" (during {self.operation})"
        if self.code:
            text += f" [{self.code}]"
        return f"{text}. {self.hint}" if self.hint else text


class BackendUnavailableError(GpuError):
    """The backend's driver, library or device is absent on this machine."""

    exit_code = 11


class BackendIncompatibleError(GpuError):
    """A plugin was written for another HAL version, or its hooks have a wrong signature."""

    exit_code = 11


class DeviceNotFoundError(GpuError, LookupError):
    """No device fits the request."""

    exit_code = 11


class OutOfMemoryError(GpuError, MemoryError):
    """The device cannot allocate `requested` bytes; `free` bytes are left."""

    exit_code = 13
    usual_operation = "alloc"


class KernelCompileError(GpuError):
    """`kernel` does not compile; `log` is the compiler's output, whose first error line the message shows."""

    usual_operation = "compile"

    def __str__(self) -> str:
        lines = [" ".join(line.split()) for line in self.log.splitlines() if line.strip()]
        first_error = next((line for line in lines if "error" in line.lower()), lines[0] if lines else "")
        return super().__str__() + (f"\nThe compiler says: {first_error[:200]}" if first_error else "")


class LaunchError(GpuError):
    """A kernel could not be launched, or failed while running."""


class UnsupportedError(GpuError, NotImplementedError):
    """The device does not offer the requested operation."""


class GpuTimeoutError(GpuError, TimeoutError):
    """The device did not finish in time but still responds."""


class DeviceLostError(GpuError):
    """The device is gone (reset, unplugged, dead context): the device object and its buffers cannot be used again."""

    exit_code = 12


DEVICE_FAILURES = (
    BackendIncompatibleError,
    DeviceLostError,
    GpuTimeoutError,
    KernelCompileError,
    LaunchError,
    UnsupportedError,
)
"""Errors after which this device cannot run the model, but another one may."""
