"""The one place where a failure of Metal becomes an exception of bitnet."""

from __future__ import annotations

from bitnet_hal import errors
from bitnet_hal.driver.status import known
from bitnet_hal.errors import GpuError

from bitnet_metal.driver import BACKEND, Handle

TABLE = {int(code): row for code, row in known(__file__).items()}


def _error(kind: type[GpuError], message: str, operation: str, code: str, hint: str) -> GpuError:
    return kind(message, backend=BACKEND, operation=operation, code=code, hint=hint)


def failed(error: Handle) -> GpuError:
    """For the NSError of a command buffer."""
    ours = str(error.domain()) == "MTLCommandBufferErrorDomain"
    kind, hint, name = TABLE.get(int(error.code()), TABLE[0]) if ours else TABLE[0]
    code = f"{f'MTLCommandBufferError{name}' if ours else error.domain()} ({error.code()})"
    return _error(kind or errors.LaunchError, str(error.localizedDescription()), "run", code, hint)


def not_built(error: Handle, kernel: str) -> GpuError:
    """For the NSError of a library, function or pipeline; its text is the compiler's log."""
    code, hint = (
        f"{error.domain()} ({error.code()})",
        "Update macOS, or report this with the compiler's log and the output of `bitnet doctor --json`",
    )
    made = _error(errors.KernelCompileError, f"kernel {kernel} does not build", "compile", code, hint)
    made.kernel, made.log = kernel, str(error.localizedDescription())
    return made


def no_room(nbytes: int, free: int) -> GpuError:
    """nbytes were asked for, `free` are left of the GPU's working set."""
    text = f"{nbytes:,} bytes do not fit, {free:,} are free"
    made = _error(errors.OutOfMemoryError, text, "alloc", "nil", TABLE[8].hint)
    made.requested, made.free = nbytes, free
    return made


def too_slow(seconds: float) -> GpuError:
    """A wait has ended without the GPU."""
    text = f"the GPU did not finish within {seconds:g} seconds"
    return _error(errors.GpuTimeoutError, text, "synchronize", "no end", "BITNET_GPU_TIMEOUT allows more")


def refused(why: str, operation: str) -> GpuError:
    """Something that the device, or this plugin, does not offer."""
    return _error(errors.UnsupportedError, why, operation, "", "")
