"""The one place where a failure of Metal becomes an exception of bitnet."""

from __future__ import annotations

from bitnet_core.errors import (
    DeviceLostError,
    GpuError,
    GpuTimeoutError,
    KernelCompileError,
    LaunchError,
    OutOfMemoryError,
    UnsupportedError,
)

from bitnet_metal.driver import BACKEND, Handle

COMMANDS = "MTLCommandBufferErrorDomain"
"""Of failures of command buffers; libraries and pipelines have domains of their own."""

Row = tuple[type[GpuError], str]
_BUG: Row = (LaunchError, "This is a fault of bitnet-metal: please report it with this text")
_RESTART: Row = (DeviceLostError, "macOS restarted the GPU: open the device again; Console.app shows a GPU report")
TABLE: dict[int, tuple[str, *Row]] = {
    0: ("None", *_BUG),
    1: ("Internal", *_RESTART),
    2: ("Timeout", GpuTimeoutError, "macOS stopped a command that ran too long: use a smaller prompt chunk or context"),
    3: ("PageFault", *_RESTART),
    4: ("AccessRevoked", DeviceLostError, "macOS refuses this process after earlier faults: start the program again"),
    7: ("NotPermitted", LaunchError, "The process may not use the GPU now: run it in the foreground, in a login session"),
    8: ("OutOfMemory", OutOfMemoryError, "Use a smaller context or model, or close other programs"),
    9: ("InvalidResource", *_BUG),
    10: ("Memoryless", *_BUG),
    11: ("DeviceRemoved", DeviceLostError, "The GPU was removed: open another device"),
    12: ("StackOverflow", *_BUG),
}
"""By MTLCommandBufferError: its name, bitnet's class, what to do."""


def converted(
    error: Handle, operation: str, device: str = "", *, kernel: str = "", requested: int = 0, free: int = -1
) -> GpuError:
    """The exception for an NSError (None where Metal gave no reason); kernel: the one that does not build."""
    text = str(error.localizedDescription()) if error is not None else "Metal gives no reason"
    domain, code = (str(error.domain()), int(error.code())) if error is not None else (COMMANDS, 0)
    if kernel:
        message, name, kind = f"kernel {kernel} does not build", f"{domain} {code}", KernelCompileError
        hint = "Update macOS, or report this with the compiler's log"
        return kind(message, backend=BACKEND, device=device, operation=operation, code=name, hint=hint, kernel=kernel, log=text)
    name, other, hint = TABLE.get(code, TABLE[0]) if domain == COMMANDS else (domain, *_BUG)
    return other(
        text,
        backend=BACKEND,
        device=device,
        operation=operation,
        code=f"MTLCommandBufferError{name} ({code})" if domain == COMMANDS else f"{domain} ({code})",
        hint=hint,
        requested=requested,
        free=free,
    )


def no_room(nbytes: int, free: int, device: str) -> OutOfMemoryError:
    """nbytes were asked for, `free` are left of the GPU's working set."""
    return OutOfMemoryError(
        f"{nbytes:,} bytes do not fit, {free:,} are free",
        backend=BACKEND,
        device=device,
        operation="alloc",
        code="nil from newBufferWithLength:options:",
        hint=TABLE[8][2],
        requested=nbytes,
        free=free,
    )


def too_slow(seconds: float, device: str) -> GpuTimeoutError:
    """A wait has ended without the GPU."""
    return GpuTimeoutError(
        f"the GPU did not finish within {seconds:g} seconds",
        backend=BACKEND,
        device=device,
        operation="synchronize",
        code="status below MTLCommandBufferStatusCompleted",
        hint="BITNET_GPU_TIMEOUT allows more; Activity Monitor shows who uses the GPU",
    )


def refused(why: str, operation: str, device: str = "") -> UnsupportedError:
    """Something that the device, or this plugin, does not offer."""
    return UnsupportedError(why, backend=BACKEND, device=device, operation=operation)
