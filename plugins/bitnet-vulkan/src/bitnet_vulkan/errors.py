"""The one place where a VkResult becomes an exception."""

from __future__ import annotations

from enum import Enum

from bitnet_core.errors import (
    BackendUnavailableError,
    DeviceLostError,
    GpuError,
    GpuTimeoutError,
    KernelCompileError,
    LaunchError,
    OutOfMemoryError,
    UnsupportedError,
)

SUCCESS, TIMEOUT, TOO_MANY_OBJECTS, DEVICE_LOST = 0, 2, -10, -4


class Stage(Enum):
    """What was being done: it names the error where the code alone does not."""

    INSTANCE = "create instance"
    DEVICES = "list devices"
    DEVICE = "create device"
    PIPELINE = "compile"
    MEMORY = "alloc"
    COMMANDS = "record commands"
    QUEUE = "submit"
    WAIT = "wait"


_MEMORY, _UPDATE = "Use a smaller context, or close other programs on the GPU", "Update the driver"
_CODES: dict[int, tuple[str, type[GpuError] | None, str]] = {
    TIMEOUT: ("VK_TIMEOUT", GpuTimeoutError, "Raise BITNET_GPU_TIMEOUT (seconds) if the device is only slow"),
    -1: ("VK_ERROR_OUT_OF_HOST_MEMORY", OutOfMemoryError, "Close other programs"),
    -2: ("VK_ERROR_OUT_OF_DEVICE_MEMORY", OutOfMemoryError, _MEMORY),
    -3: ("VK_ERROR_INITIALIZATION_FAILED", None, ""),
    DEVICE_LOST: ("VK_ERROR_DEVICE_LOST", DeviceLostError, "See the system log for a driver reset, then open it again"),
    -5: ("VK_ERROR_MEMORY_MAP_FAILED", None, ""),
    -6: ("VK_ERROR_LAYER_NOT_PRESENT", BackendUnavailableError, "Install the layer, or unset VK_INSTANCE_LAYERS"),
    -7: ("VK_ERROR_EXTENSION_NOT_PRESENT", UnsupportedError, _UPDATE),
    -8: ("VK_ERROR_FEATURE_NOT_PRESENT", UnsupportedError, _UPDATE),
    -9: ("VK_ERROR_INCOMPATIBLE_DRIVER", BackendUnavailableError, "Install a driver (Debian: mesa-vulkan-drivers)"),
    TOO_MANY_OBJECTS: ("VK_ERROR_TOO_MANY_OBJECTS", OutOfMemoryError, _MEMORY),
    -12: ("VK_ERROR_FRAGMENTED_POOL", OutOfMemoryError, _MEMORY),
    -13: ("VK_ERROR_UNKNOWN", None, ""),
    -1000069000: ("VK_ERROR_OUT_OF_POOL_MEMORY", OutOfMemoryError, _MEMORY),
    -1000012000: ("VK_ERROR_INVALID_SHADER_NV", KernelCompileError, ""),
}
_STAGES: dict[Stage, type[GpuError]] = {
    Stage.PIPELINE: KernelCompileError,
    Stage.MEMORY: OutOfMemoryError,
    Stage.COMMANDS: LaunchError,
    Stage.QUEUE: LaunchError,
    Stage.WAIT: LaunchError,
}


def check(status: int, stage: Stage, device: str = "", *, kernel: str = "", requested: int = 0, free: int = -1) -> None:
    """Return on success; raise the error of (status, stage) otherwise. Sizes are bytes."""
    if status == SUCCESS:
        return
    name, kind, hint = _CODES.get(status, ("VkResult", None, ""))
    kind, code = kind or _STAGES.get(stage, BackendUnavailableError), f"{name} ({status})"
    message = f"{stage.value} failed"
    if kind is OutOfMemoryError:
        message = f"{requested:,} bytes do not fit" if requested else "out of memory"
    raise kind(
        f"kernel {kernel} does not build" if kind is KernelCompileError else message,
        backend="vulkan",
        device=device,
        operation=stage.value,
        code=code,
        hint=hint,
        requested=requested,
        free=free,
        kernel=kernel,
        log=code if kind is KernelCompileError else "",
    )
