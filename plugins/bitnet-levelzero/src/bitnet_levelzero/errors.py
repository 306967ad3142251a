"""The one place where Level Zero's results become exceptions."""

from __future__ import annotations

from typing import Unpack

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
from bitnet_core.hal.failures import Details, failure

from bitnet_levelzero.api import RESULTS

BACKEND = "level-zero"
UNINITIALIZED = 0x78000001
_DRIVER = "Install or update Intel's GPU driver"

TABLE: dict[int, tuple[type[GpuError], str]] = {
    0x1: (GpuTimeoutError, ""),  # NOT_READY
    0x70000001: (DeviceLostError, ""),
    0x70000002: (OutOfMemoryError, ""),
    0x70000003: (OutOfMemoryError, ""),
    0x70000004: (KernelCompileError, ""),
    0x70000005: (KernelCompileError, ""),
    0x70000006: (DeviceLostError, ""),  # it requires a reset
    0x70010000: (BackendUnavailableError, "Join the groups render and video"),  # INSUFFICIENT_PERMISSIONS
    0x70020000: (BackendUnavailableError, _DRIVER),
    UNINITIALIZED: (BackendUnavailableError, _DRIVER),
    0x78000002: (UnsupportedError, _DRIVER),  # UNSUPPORTED_VERSION, _FEATURE, _ENUMERATION and _IMAGE_FORMAT
    0x78000003: (UnsupportedError, _DRIVER),
    0x7800000D: (UnsupportedError, _DRIVER),
    0x7800000E: (UnsupportedError, _DRIVER),
    0x78000009: (OutOfMemoryError, ""),  # UNSUPPORTED_SIZE
    0x7FFFFFFE: (DeviceLostError, ""),  # UNKNOWN: nothing can be relied on any more
}
"""Exception class of a ze_result_t, and a hint where core knows no better one; all others are a LaunchError."""


def check(result: int, operation: str, device: str = "", **details: Unpack[Details]) -> None:
    """Raise the exception of a result; 0 is success."""
    if result:
        kind, hint = TABLE.get(result, (LaunchError, ""))
        code = f"ZE_RESULT_{RESULTS.get(result, 'unnamed')} (0x{result:08x})"
        raise failure(kind, operation, backend=BACKEND, device=device, code=code, hint=hint, **details)
