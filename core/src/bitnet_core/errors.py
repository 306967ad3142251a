"""All exceptions: those of `bitnet_hal.errors`, and those that core adds, with their exit codes.

BitnetError                       1
├── ModelError                    3   a model file cannot be used
│   └── TokenizerError            4
└── ReceiptError                  14
"""

from __future__ import annotations

from bitnet_hal.errors import (
    BackendIncompatibleError,
    BackendUnavailableError,
    BitnetError,
    CutOffError,
    DeviceLostError,
    DeviceNotFoundError,
    GpuError,
    GpuTimeoutError,
    KernelCompileError,
    LaunchError,
    OutOfMemoryError,
    StrictModeError,
    UnsupportedError,
    UsageError,
)

__all__ = [
    "BackendIncompatibleError",
    "BackendUnavailableError",
    "BitnetError",
    "CutOffError",
    "DeviceLostError",
    "DeviceNotFoundError",
    "GpuError",
    "GpuTimeoutError",
    "KernelCompileError",
    "LaunchError",
    "ModelError",
    "OutOfMemoryError",
    "ReceiptError",
    "StrictModeError",
    "TokenizerError",
    "UnsupportedError",
    "UsageError",
]


class ModelError(BitnetError):
    """An unusable model file. The message states the fault, its place and cause, and the remedy."""

    exit_code = 3


class TokenizerError(ModelError):
    """A model's tokenizer that is missing, malformed or of an unknown kind."""

    exit_code = 4


class ReceiptError(BitnetError):
    """A receipt that cannot be written, read or verified."""

    exit_code = 14
