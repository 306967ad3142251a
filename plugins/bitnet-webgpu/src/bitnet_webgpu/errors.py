"""The one place where a failure of wgpu becomes an exception of bitnet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from bitnet_core.errors import (
    BackendUnavailableError,
    DeviceLostError,
    GpuError,
    KernelCompileError,
    LaunchError,
    OutOfMemoryError,
)

from bitnet_webgpu.driver import module

BACKEND = "webgpu"


class Stage(Enum):
    """What was being done: it names the error where the class alone does not."""

    DEVICE = "open"
    MEMORY = "alloc"
    COMPILE = "compile"
    TRANSFER = "transfer"
    QUEUE = "submit"


_REPORT = "This is a fault of bitnet-webgpu or of the driver; please report it with this text"
_MEMORY = "Use a smaller context, or close other programs on the GPU"
TABLE: dict[str, tuple[type[GpuError] | None, str]] = {
    "GPUOutOfMemoryError": (OutOfMemoryError, _MEMORY),
    "GPUValidationError": (None, _REPORT),
    "GPUPipelineError": (KernelCompileError, _REPORT),
    "GPUInternalError": (None, "Update the driver of the GPU"),
    "GPUError": (None, "Update the driver of the GPU"),
    "RuntimeError": (None, "Update the driver of the GPU"),
}
"""By the name of wgpu's class: bitnet's class (None: that of the stage) and what to do."""
_STAGES: dict[Stage, type[GpuError]] = {
    Stage.DEVICE: BackendUnavailableError,
    Stage.MEMORY: OutOfMemoryError,
    Stage.COMPILE: KernelCompileError,
    Stage.TRANSFER: LaunchError,
    Stage.QUEUE: LaunchError,
}
_LOST = "device is lost", "device was lost", "has been destroyed", "Parent device is lost"
_NO_MEMORY = "Not enough memory", "out of memory"


def converted(error: Exception, stage: Stage, device: str = "", *, kernel: str = "", requested: int = 0) -> GpuError:
    """The exception of bitnet for one of wgpu's; `requested` is bytes."""
    text, name = str(error).strip(), type(error).__name__
    kind, hint = TABLE.get(name, TABLE["GPUError"])
    kind = kind or _STAGES[stage]
    if any(words in text for words in _LOST):
        kind, hint = DeviceLostError, "See the system log for a driver reset, then open it again"
    elif any(words in text for words in _NO_MEMORY):
        kind = OutOfMemoryError
    message = text.splitlines()[0] if text else "failed"
    if kind is OutOfMemoryError:
        message, hint = f"{requested:,} bytes do not fit" if requested else "out of memory", _MEMORY
    elif kind is KernelCompileError:
        message = f"kernel {kernel} does not build"
    return kind(
        message,
        backend=BACKEND,
        device=device,
        operation=stage.value,
        code=name,
        hint=hint,
        requested=requested,
        kernel=kernel,
        log=text,
    )


@contextmanager
def checked(stage: Stage, device: str = "", *, kernel: str = "", requested: int = 0) -> Iterator[None]:
    """Raise bitnet's exception for wgpu's."""
    try:
        yield
    except GpuError:
        raise
    except (RuntimeError, module().GPUError) as error:
        raise converted(error, stage, device, kernel=kernel, requested=requested) from error
