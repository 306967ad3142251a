"""Conversion of hipError_t and hiprtcResult to exceptions."""

from __future__ import annotations

from typing import Any

from bitnet_hal.errors import (
    BackendUnavailableError,
    DeviceLostError,
    DeviceNotFoundError,
    GpuError,
    GpuTimeoutError,
    LaunchError,
    OutOfMemoryError,
    UnsupportedError,
)
from bitnet_hal.plugin import failure

Row = tuple[type[GpuError], str]
_BUG: Row = (LaunchError, "This is a fault of bitnet-rocm: please report it with the output of `bitnet doctor --json`")
_DEAD: Row = (DeviceLostError, "The GPU's context is dead: open the device again; `sudo dmesg` may say more")
_LOAD: Row = (BackendUnavailableError, "Check that `rocminfo` shows the GPU")
_IMAGE: Row = (UnsupportedError, "This ROCm does not support the GPU: update it, or use bitnet-vulkan")
_GRAPH: Row = (LaunchError, "Recording a graph failed: update ROCm")
TABLE: dict[int, Row] = {
    **dict.fromkeys((1, 5, 6, 7, 8, 9, 12, 13, 17, 21, 52, 98), _BUG),  # arguments and profiler
    **dict.fromkeys((201, 202, 205, 206, 207, 208, 210, 211, 212, 213, 215, 217, 219), _BUG),  # contexts, mapping
    **dict.fromkeys((300, 400, 401, 500, 600, 701, 704, 705, 708, 712, 713, 720), _BUG),  # modules, peers, launches
    **dict.fromkeys((911, 912, 914, 915, 916, 1054, 1055), _BUG),  # textures, clusters
    **dict.fromkeys((900, 901, 902, 903, 904, 905, 906, 907, 908, 910), _GRAPH),  # hipErrorStreamCapture...
    **dict.fromkeys((4, 53, 214, 700, 709, 710, 719, 999, 1052, 1053), _DEAD),  # faults in kernels and memory
    **dict.fromkeys((200, 209, 218, 801), _IMAGE),  # InvalidImage, NoBinaryForGpu, InvalidKernelFile, NotSupported
    **dict.fromkeys((3, 301, 302, 303, 304), _LOAD),  # NotInitialized, missing files and symbols
    2: (OutOfMemoryError, "Use a smaller context, or close other programs; an APU's share is set in its BIOS"),
    35: (BackendUnavailableError, "The amdgpu driver is older than this ROCm: update it"),
    100: (BackendUnavailableError, "Check that `rocminfo` shows the GPU, and HIP_VISIBLE_DEVICES"),
    101: (DeviceNotFoundError, "`bitnet devices` lists the GPUs"),
    216: (BackendUnavailableError, "Another program holds the GPU"),
    702: (GpuTimeoutError, "The driver stopped a long kernel"),
}
"""Class and hint of every hipError_t that hip-python lists; others are a LaunchError."""

_TOOLS = "Check the installation of ROCm (hipRTC and comgr)"
COMPILING: dict[int, str] = {
    1: "Close other programs: the compiler ran out of memory",
    **dict.fromkeys((2, 7, 8, 9, 10, 11, 100), _TOOLS),
    **dict.fromkeys((3, 4), _BUG[1]),
    5: "This hipRTC does not know the GPU: update ROCm, or set HSA_OVERRIDE_GFX_VERSION at your own risk",
    6: "Update ROCm; where the log calls the GPU unknown, HSA_OVERRIDE_GFX_VERSION may help, at your own risk",
}
"""Hint by hiprtcResult; each is a KernelCompileError."""


def check(
    result: tuple[Any, ...], operation: str, *, device: str = "", requested: int = 0, free: int = -1
) -> tuple[Any, ...]:
    """Return the values of a hip-python call without its status. Raises the exception of the status."""
    status = int(result[0])
    if status == 0:
        return result[1:]
    kind, hint = TABLE.get(status, (LaunchError, ""))
    code = f"{getattr(result[0], 'name', 'hipError_t')} ({status})"
    raise failure(kind, operation, backend="rocm", code=code, device=device, hint=hint, requested=requested, free=free)
