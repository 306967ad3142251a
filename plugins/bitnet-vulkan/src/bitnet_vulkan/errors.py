"""The one place where a VkResult becomes an exception."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import NoReturn

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


class VkResult(IntEnum):
    """Status codes of the Vulkan specification that a compute program can meet."""

    SUCCESS = 0
    NOT_READY = 1
    TIMEOUT = 2
    ERROR_OUT_OF_HOST_MEMORY = -1
    ERROR_OUT_OF_DEVICE_MEMORY = -2
    ERROR_INITIALIZATION_FAILED = -3
    ERROR_DEVICE_LOST = -4
    ERROR_MEMORY_MAP_FAILED = -5
    ERROR_LAYER_NOT_PRESENT = -6
    ERROR_EXTENSION_NOT_PRESENT = -7
    ERROR_FEATURE_NOT_PRESENT = -8
    ERROR_INCOMPATIBLE_DRIVER = -9
    ERROR_TOO_MANY_OBJECTS = -10
    ERROR_FORMAT_NOT_SUPPORTED = -11
    ERROR_FRAGMENTED_POOL = -12
    ERROR_UNKNOWN = -13
    ERROR_OUT_OF_POOL_MEMORY = -1000069000
    ERROR_INVALID_SHADER_NV = -1000012000


class Stage(Enum):
    """What was being done: it names the error where the code alone does not."""

    INSTANCE_CREATION = "create instance"
    NO_DEVICE = "list devices"
    DEVICE_CREATION = "create device"
    PIPELINE_CREATION = "create pipeline"
    SHADER_COMPILATION = "compile"
    BUFFER_ALLOCATION = "alloc"
    MEMORY_TYPE_NOT_FOUND = "choose memory type"
    COMMAND_BUFFER = "record commands"
    QUEUE = "submit"
    WAIT = "wait"


_CODES: dict[VkResult, tuple[type[GpuError], str]] = {
    VkResult.TIMEOUT: (GpuTimeoutError, "Raise BITNET_VULKAN_TIMEOUT (seconds) if the device is only slow"),
    VkResult.ERROR_OUT_OF_HOST_MEMORY: (OutOfMemoryError, "Close other programs"),
    VkResult.ERROR_OUT_OF_DEVICE_MEMORY: (
        OutOfMemoryError,
        "Use a smaller context or free GPU memory",
    ),
    VkResult.ERROR_TOO_MANY_OBJECTS: (OutOfMemoryError, "Close other programs on the GPU"),
    VkResult.ERROR_OUT_OF_POOL_MEMORY: (OutOfMemoryError, "Close other programs on the GPU"),
    VkResult.ERROR_FRAGMENTED_POOL: (OutOfMemoryError, "Close other programs on the GPU"),
    VkResult.ERROR_DEVICE_LOST: (
        DeviceLostError,
        "See the system log for a driver reset, then open it again",
    ),
    VkResult.ERROR_LAYER_NOT_PRESENT: (
        BackendUnavailableError,
        "Install the layer, or unset what asks for it: VK_INSTANCE_LAYERS, BITNET_VULKAN_VALIDATE",
    ),
    VkResult.ERROR_EXTENSION_NOT_PRESENT: (UnsupportedError, "Update the driver"),
    VkResult.ERROR_FEATURE_NOT_PRESENT: (UnsupportedError, "Update the driver"),
    VkResult.ERROR_FORMAT_NOT_SUPPORTED: (UnsupportedError, ""),
    VkResult.ERROR_INCOMPATIBLE_DRIVER: (
        BackendUnavailableError,
        "Install a driver (Debian: mesa-vulkan-drivers)",
    ),
    VkResult.ERROR_INVALID_SHADER_NV: (KernelCompileError, ""),
}
_STAGES: dict[Stage, type[GpuError]] = {
    Stage.INSTANCE_CREATION: BackendUnavailableError,
    Stage.NO_DEVICE: BackendUnavailableError,
    Stage.DEVICE_CREATION: BackendUnavailableError,
    Stage.PIPELINE_CREATION: KernelCompileError,
    Stage.SHADER_COMPILATION: KernelCompileError,
    Stage.BUFFER_ALLOCATION: OutOfMemoryError,
    Stage.MEMORY_TYPE_NOT_FOUND: UnsupportedError,
    Stage.COMMAND_BUFFER: LaunchError,
    Stage.QUEUE: LaunchError,
    Stage.WAIT: LaunchError,
}


def check(status: int, stage: Stage, *, device: str = "", kernel: str = "", requested: int = 0, free: int = -1) -> None:
    """Return on success; raise the error of (status, stage) otherwise. Sizes are bytes."""
    if status != VkResult.SUCCESS:
        fail(status, stage, device=device, kernel=kernel, requested=requested, free=free)


def fail(
    status: int, stage: Stage, *, device: str = "", kernel: str = "", requested: int = 0, free: int = -1
) -> NoReturn:
    """Raise the error of (status, stage)."""
    known = status in VkResult._value2member_map_
    code = f"VK_{VkResult(status).name} ({status})" if known else f"VkResult {status}"
    kind, hint = _CODES.get(VkResult(status), (_STAGES[stage], "")) if known else (_STAGES[stage], "")
    common = {"backend": "vulkan", "device": device, "operation": stage.value, "code": code, "hint": hint}
    if kind is OutOfMemoryError:
        what = f"{requested:,} bytes do not fit" if requested else "out of memory"
        raise OutOfMemoryError(what, requested=requested, free=free, **common)
    if kind is KernelCompileError:
        raise KernelCompileError(f"kernel {kernel} does not build", kernel=kernel, log=code, **common)
    raise kind(f"{stage.value} failed", **common)
