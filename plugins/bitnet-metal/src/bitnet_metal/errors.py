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
Row = tuple[str, type[GpuError], str]
_BUG = LaunchError, "This is a fault of bitnet-metal: please report it with this text"
_RESTART = DeviceLostError, "macOS restarted the GPU: open the device again; Console.app shows a GPU report"
TABLE: dict[int, Row] = {
    0: ("None", *_BUG),
    1: ("Internal", *_RESTART),
    2: ("Timeout", GpuTimeoutError, "macOS stopped a command that ran too long: use a smaller prompt chunk or context"),
    3: ("PageFault", *_RESTART),
    4: ("AccessRevoked", DeviceLostError, "macOS refuses this process after earlier faults: start the program again"),
    7: (
        "NotPermitted",
        LaunchError,
        "The process may not use the GPU now: run it in the foreground, in a login session",
    ),
    8: ("OutOfMemory", OutOfMemoryError, "Use a smaller context or model, or close other programs"),
    9: ("InvalidResource", *_BUG),
    10: ("Memoryless", *_BUG),
    11: ("DeviceRemoved", DeviceLostError, "The GPU was removed: open another device"),
    12: ("StackOverflow", *_BUG),
}
"""By MTLCommandBufferError: its name, bitnet's class, what to do."""


def failed(error: Handle, device: str) -> GpuError:
    """For the NSError of a command buffer."""
    domain, code = str(error.domain()), int(error.code())
    name, kind, hint = TABLE.get(code, TABLE[0]) if domain == COMMANDS else TABLE[0]
    code_name = f"MTLCommandBufferError{name} ({code})" if domain == COMMANDS else f"{domain} ({code})"
    text = str(error.localizedDescription())
    return kind(text, backend=BACKEND, device=device, operation="run", code=code_name, hint=hint)


def not_built(error: Handle, kernel: str, device: str) -> KernelCompileError:
    """For the NSError of a library, function or pipeline; its text is the compiler's log."""
    return KernelCompileError(
        f"kernel {kernel} does not build",
        backend=BACKEND,
        device=device,
        operation="compile",
        code=f"{error.domain()} {error.code()}",
        hint="Update macOS, or report this with the compiler's log",
        kernel=kernel,
        log=str(error.localizedDescription()),
    )


def no_room(nbytes: int, free: int, device: str) -> OutOfMemoryError:
    """nbytes were asked for, `free` are left of the GPU's working set."""
    about = {"backend": BACKEND, "device": device, "operation": "alloc", "code": "no buffer", "hint": TABLE[8][2]}
    return OutOfMemoryError(f"{nbytes:,} bytes do not fit, {free:,} are free", requested=nbytes, free=free, **about)


def too_slow(seconds: float, device: str) -> GpuTimeoutError:
    """A wait has ended without the GPU."""
    hint = "BITNET_GPU_TIMEOUT allows more; Activity Monitor shows who uses the GPU"
    message = f"the GPU did not finish within {seconds:g} seconds"
    return GpuTimeoutError(message, backend=BACKEND, device=device, operation="synchronize", code="not done", hint=hint)


def refused(why: str, operation: str) -> UnsupportedError:
    """Something that the device, or this plugin, does not offer."""
    return UnsupportedError(why, backend=BACKEND, operation=operation)
