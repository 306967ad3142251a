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
from bitnet_core.hal.failures import failure

from bitnet_webgpu.driver import module

BACKEND = "webgpu"


class Stage(Enum):
    """What was being done: it names the error where the class alone does not."""

    DEVICE = "open"
    MEMORY = "alloc"
    COMPILE = "compile"
    TRANSFER = "transfer"
    QUEUE = "submit"


Row = tuple[type[GpuError] | None, str]
_MEMORY: Row = (OutOfMemoryError, "Use a smaller context, or close other programs on the GPU")
_LOST: Row = (DeviceLostError, "See the system log for a driver reset, then open it again")
_REPORT = "This is a fault of bitnet-webgpu or of the driver; please report it with this text"
_UPDATE: Row = (None, "Update the driver of the GPU")
TABLE: dict[str, Row] = {
    "GPUOutOfMemoryError": _MEMORY,
    "GPUValidationError": (None, _REPORT),
    "GPUPipelineError": (KernelCompileError, _REPORT),
    "GPUInternalError": _UPDATE,
    "GPUError": _UPDATE,
    "RuntimeError": _UPDATE,
}
"""By the name of wgpu's class: bitnet's class (None: that of the stage) and what to do."""
WORDS: dict[str, Row] = {
    "device is lost": _LOST,
    "device was lost": _LOST,
    "has been destroyed": _LOST,
    "not enough memory": _MEMORY,
    "out of memory": _MEMORY,
}
"""By words of the text, which tell more than wgpu's class."""
_STAGES: dict[Stage, type[GpuError]] = {
    Stage.DEVICE: BackendUnavailableError,
    Stage.MEMORY: OutOfMemoryError,
    Stage.COMPILE: KernelCompileError,
}
"""What it is called where no row says so; else a LaunchError."""


def converted(error: Exception, stage: Stage, device: str = "", *, kernel: str = "", requested: int = 0) -> GpuError:
    """The exception of bitnet for one of wgpu's; `requested` is bytes."""
    text, code = str(error), type(error).__name__
    told = next((row for words, row in WORDS.items() if words in text.lower()), None)
    kind, hint = told or TABLE.get(code, _UPDATE)
    said = (text.strip().splitlines() or [""])[-1].strip()  # wgpu ends with the cause of all that it says before
    return failure(
        kind or _STAGES.get(stage, LaunchError),
        stage.value,
        backend=BACKEND,
        device=device,
        code=code,
        hint=hint,
        said=said,
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
