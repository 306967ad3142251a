"""The one place where a CUresult becomes an exception."""

from __future__ import annotations

from typing import Any

from bitnet_core.errors import (
    BackendUnavailableError,
    DeviceLostError,
    DeviceNotFoundError,
    GpuError,
    GpuTimeoutError,
    LaunchError,
    OutOfMemoryError,
    UnsupportedError,
)
from bitnet_core.hal.failures import failure

Row = tuple[type[GpuError], str]
_OLD: Row = (UnsupportedError, "Update the NVIDIA driver to one for CUDA 13 (release 580 or later)")
_DEAD: Row = (DeviceLostError, "CUDA refuses this process from now on: start it again")
_DRIVER: Row = (BackendUnavailableError, "Check that `nvidia-smi` works")
_MEMORY: Row = (DeviceLostError, "The GPU reports a memory error: check `nvidia-smi -q`")
TABLE: dict[int, Row] = {
    **dict.fromkeys((4, 700, 709, 710, 714, 715, 716, 717, 718, 719), _DEAD),  # faults in kernels; a closed context
    **dict.fromkeys((200, 209, 218, 222, 801), _OLD),  # images, PTX and functions that the driver does not know
    **dict.fromkeys((214, 220), _MEMORY),  # ECC_UNCORRECTABLE, NVLINK_UNCORRECTABLE
    **dict.fromkeys((3, 802), _DRIVER),  # NOT_INITIALIZED, SYSTEM_NOT_READY
    2: (OutOfMemoryError, "Use a smaller context, or close other programs on the GPU"),
    34: (BackendUnavailableError, "A stub libcuda is found first: remove it from LD_LIBRARY_PATH"),
    46: (BackendUnavailableError, "Another program holds the GPU exclusively"),
    100: (BackendUnavailableError, "Check `nvidia-smi` and CUDA_VISIBLE_DEVICES"),
    101: (DeviceNotFoundError, "`bitnet devices` lists the GPUs"),
    702: (GpuTimeoutError, "The display driver stopped a long kernel"),
    803: (BackendUnavailableError, "Driver and libcuda differ: reboot"),
}
"""Class and hint by CUresult; codes that are missing are a LaunchError."""


def check(
    result: tuple[Any, ...], operation: str, *, device: str = "", requested: int = 0, free: int = -1
) -> tuple[Any, ...]:
    """The values of a cuda.bindings call without its status; raises the status's error."""
    status = int(result[0])
    if status == 0:
        return result[1:]
    kind, hint = TABLE.get(status, (LaunchError, ""))
    code = f"{getattr(result[0], 'name', 'CUresult')} ({status})"
    raise failure(kind, operation, backend="cuda", code=code, device=device, hint=hint, requested=requested, free=free)
