"""Conversion of Metal's failures to exceptions of bitnet."""

from __future__ import annotations

from bitnet_hal import errors
from bitnet_hal.driver.status import known
from bitnet_hal.errors import GpuError

from bitnet_metal.driver import BACKEND, Handle

TABLE = {int(code): row for code, row in known(__file__).items()}


def _error(kind: type[GpuError], message: str, operation: str, code: str, hint: str) -> GpuError:
    return kind(message, backend=BACKEND, operation=operation, code=code, hint=hint)


def failed(error: Handle) -> GpuError:
    """Return the exception for the NSError of a command buffer."""
    if str(error.domain()) == "MTLCommandBufferErrorDomain":
        kind, hint, name = TABLE.get(int(error.code()), TABLE[0])
        code = f"MTLCommandBufferError{name} ({error.code()})"
    else:
        kind, hint, _ = TABLE[0]
        code = f"{error.domain()} ({error.code()})"
    return _error(kind or errors.LaunchError, str(error.localizedDescription()), "run", code, hint)


def not_built(error: Handle, kernel: str) -> GpuError:
    """Return the exception for the NSError of a library, function or pipeline, whose text is the compiler's log."""
    code = f"{error.domain()} ({error.code()})"
    hint = "Update macOS, or report this with the compiler's log and the output of `bitnet doctor --json`"
    made = _error(errors.KernelCompileError, f"kernel {kernel} does not build", "compile", code, hint)
    made.kernel = kernel
    made.log = str(error.localizedDescription())
    return made


def no_room(nbytes: int, free: int) -> GpuError:
    """Return the exception for an allocation of `nbytes` if `free` bytes are left of the GPU's working set."""
    text = f"{nbytes:,} bytes do not fit, {free:,} are free"
    made = _error(errors.OutOfMemoryError, text, "alloc", "nil", TABLE[8].hint)
    made.requested = nbytes
    made.free = free
    return made


def too_slow(seconds: float) -> GpuError:
    """Return the exception for a wait that exceeded its limit."""
    text = f"the GPU did not finish within {seconds:.4g} seconds"
    return _error(errors.GpuTimeoutError, text, "synchronize", "no end", "BITNET_GPU_TIMEOUT allows more")


def refused(why: str, operation: str) -> GpuError:
    """Return the exception for something that the device or this plugin does not support."""
    return _error(errors.UnsupportedError, why, operation, "", "")
