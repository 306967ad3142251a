"""The one place where a CUresult becomes an exception."""

from __future__ import annotations

from enum import IntEnum
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


class Status(IntEnum):
    """Codes of the CUDA driver API that this plugin tells apart."""

    SUCCESS = 0
    INVALID_VALUE = 1
    OUT_OF_MEMORY = 2
    NOT_INITIALIZED = 3
    DEINITIALIZED = 4
    STUB_LIBRARY = 34
    DEVICE_UNAVAILABLE = 46
    NO_DEVICE = 100
    INVALID_DEVICE = 101
    INVALID_IMAGE = 200
    INVALID_CONTEXT = 201
    NO_BINARY_FOR_GPU = 209
    ECC_UNCORRECTABLE = 214
    INVALID_PTX = 218
    UNSUPPORTED_PTX_VERSION = 222
    INVALID_HANDLE = 400
    NOT_FOUND = 500
    ILLEGAL_ADDRESS = 700
    LAUNCH_OUT_OF_RESOURCES = 701
    LAUNCH_TIMEOUT = 702
    CONTEXT_IS_DESTROYED = 709
    ASSERT = 710
    HARDWARE_STACK_ERROR = 714
    ILLEGAL_INSTRUCTION = 715
    MISALIGNED_ADDRESS = 716
    INVALID_ADDRESS_SPACE = 717
    INVALID_PC = 718
    LAUNCH_FAILED = 719
    NOT_PERMITTED = 800
    NOT_SUPPORTED = 801
    SYSTEM_NOT_READY = 802
    SYSTEM_DRIVER_MISMATCH = 803
    STREAM_CAPTURE_UNSUPPORTED = 900
    UNKNOWN = 999


_UPDATE = "Update the NVIDIA driver to one for CUDA 13 (release 580 or later)"
_DEAD = "The CUDA context is dead: open the device again"
TABLE: dict[Status, tuple[type[GpuError], str]] = {
    Status.OUT_OF_MEMORY: (OutOfMemoryError, "Use a smaller context, or close other programs on the GPU"),
    Status.NOT_INITIALIZED: (BackendUnavailableError, "Check that `nvidia-smi` works"),
    Status.DEINITIALIZED: (DeviceLostError, _DEAD),
    Status.STUB_LIBRARY: (BackendUnavailableError, "A stub libcuda is found first: remove it from LD_LIBRARY_PATH"),
    Status.DEVICE_UNAVAILABLE: (BackendUnavailableError, "Another program holds the GPU exclusively"),
    Status.NO_DEVICE: (BackendUnavailableError, "Check `nvidia-smi` and CUDA_VISIBLE_DEVICES"),
    Status.INVALID_DEVICE: (DeviceNotFoundError, "`bitnet devices` lists the GPUs"),
    Status.NO_BINARY_FOR_GPU: (UnsupportedError, _UPDATE),
    Status.INVALID_PTX: (UnsupportedError, _UPDATE),
    Status.UNSUPPORTED_PTX_VERSION: (UnsupportedError, _UPDATE),
    Status.ECC_UNCORRECTABLE: (DeviceLostError, "The GPU reports a memory error: check `nvidia-smi -q`"),
    Status.ILLEGAL_ADDRESS: (DeviceLostError, _DEAD),
    Status.LAUNCH_TIMEOUT: (GpuTimeoutError, "The display driver stopped a long kernel"),
    Status.CONTEXT_IS_DESTROYED: (DeviceLostError, _DEAD),
    Status.ASSERT: (DeviceLostError, _DEAD),
    Status.HARDWARE_STACK_ERROR: (DeviceLostError, _DEAD),
    Status.ILLEGAL_INSTRUCTION: (DeviceLostError, _DEAD),
    Status.MISALIGNED_ADDRESS: (DeviceLostError, _DEAD),
    Status.INVALID_ADDRESS_SPACE: (DeviceLostError, _DEAD),
    Status.INVALID_PC: (DeviceLostError, _DEAD),
    Status.LAUNCH_FAILED: (DeviceLostError, _DEAD),
    Status.NOT_SUPPORTED: (UnsupportedError, _UPDATE),
    Status.SYSTEM_NOT_READY: (BackendUnavailableError, "Check that `nvidia-smi` works"),
    Status.SYSTEM_DRIVER_MISMATCH: (
        BackendUnavailableError,
        "Driver and libcuda differ: reboot",
    ),
}
"""Class and hint by code; codes that are missing are a LaunchError."""


def check(
    result: tuple[Any, ...], operation: str, *, device: str = "", requested: int = 0, free: int = -1
) -> tuple[Any, ...]:
    """The values of a cuda.bindings call without its status; raises the status's error. Sizes are bytes."""
    status = int(result[0])
    if status == Status.SUCCESS:
        return result[1:]
    known = status in Status._value2member_map_
    code = f"CUDA_ERROR_{Status(status).name} ({status})" if known else f"CUresult {status}"
    kind, hint = TABLE.get(Status(status), (LaunchError, "")) if known else (LaunchError, "")
    if kind is OutOfMemoryError:
        raise OutOfMemoryError(
            f"{requested:,} bytes do not fit, {free:,} are free" if requested else "out of memory",
            requested=requested,
            free=free,
            backend="cuda",
            device=device,
            operation=operation,
            code=code,
            hint=hint,
        )
    raise kind(f"{operation} failed", backend="cuda", device=device, operation=operation, code=code, hint=hint)
