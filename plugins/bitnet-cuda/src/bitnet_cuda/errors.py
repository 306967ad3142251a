"""The one place where a CUresult becomes an exception."""

from __future__ import annotations

from typing import Any, Unpack

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
from bitnet_core.hal.failures import Details, failure

Row = tuple[type[GpuError], str]
_OLD: Row = (UnsupportedError, "Update the NVIDIA driver to one for CUDA 13 (release 580 or later)")
_DEAD: Row = (DeviceLostError, "The CUDA context is dead: open the device again")
_DRIVER: Row = (BackendUnavailableError, "Check that `nvidia-smi` works")
_MEMORY: Row = (DeviceLostError, "The GPU reports a memory error: check `nvidia-smi -q`")
TABLE: dict[int, Row] = {
    2: (OutOfMemoryError, "Use a smaller context, or close other programs on the GPU"),
    3: _DRIVER,  # NOT_INITIALIZED
    4: _DEAD,  # DEINITIALIZED
    34: (BackendUnavailableError, "A stub libcuda is found first: remove it from LD_LIBRARY_PATH"),
    46: (BackendUnavailableError, "Another program holds the GPU exclusively"),
    100: (BackendUnavailableError, "Check `nvidia-smi` and CUDA_VISIBLE_DEVICES"),  # NO_DEVICE
    101: (DeviceNotFoundError, "`bitnet devices` lists the GPUs"),  # INVALID_DEVICE
    200: _OLD,  # INVALID_IMAGE
    209: _OLD,  # NO_BINARY_FOR_GPU
    214: _MEMORY,  # ECC_UNCORRECTABLE
    218: _OLD,  # INVALID_PTX
    220: _MEMORY,  # NVLINK_UNCORRECTABLE
    222: _OLD,  # UNSUPPORTED_PTX_VERSION
    700: _DEAD,  # ILLEGAL_ADDRESS
    702: (GpuTimeoutError, "The display driver stopped a long kernel"),
    709: _DEAD,  # CONTEXT_IS_DESTROYED
    710: _DEAD,  # ASSERT
    714: _DEAD,  # HARDWARE_STACK_ERROR
    715: _DEAD,  # ILLEGAL_INSTRUCTION
    716: _DEAD,  # MISALIGNED_ADDRESS
    717: _DEAD,  # INVALID_ADDRESS_SPACE
    718: _DEAD,  # INVALID_PC
    719: _DEAD,  # LAUNCH_FAILED
    801: _OLD,  # NOT_SUPPORTED
    802: _DRIVER,  # SYSTEM_NOT_READY
    803: (BackendUnavailableError, "Driver and libcuda differ: reboot"),
}
"""Class and hint by CUresult; codes that are missing are a LaunchError."""


def check(result: tuple[Any, ...], operation: str, **details: Unpack[Details]) -> tuple[Any, ...]:
    """The values of a cuda.bindings call without its status; raises the status's error."""
    status = int(result[0])
    if status == 0:
        return result[1:]
    kind, hint = TABLE.get(status, (LaunchError, ""))
    code = f"{getattr(result[0], 'name', 'CUresult')} ({status})"
    raise failure(kind, operation, backend="cuda", code=code, hint=hint, **details)
