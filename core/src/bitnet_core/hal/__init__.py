"""The hardware abstraction layer; see `bitnet_core.hal.device` for the contract."""

from bitnet_core.hal.device import (
    API_VERSION,
    FEATURES,
    Backend,
    Buffer,
    Device,
    DeviceInfo,
    DeviceType,
    Kernel,
    MemoryKind,
    Recording,
    TimedDevice,
    TransferMode,
    Tuning,
    View,
    whole,
)
from bitnet_core.kernels.types import Grid

__all__ = [
    "API_VERSION",
    "FEATURES",
    "Backend",
    "Buffer",
    "Device",
    "DeviceInfo",
    "DeviceType",
    "Grid",
    "Kernel",
    "MemoryKind",
    "Recording",
    "TimedDevice",
    "TransferMode",
    "Tuning",
    "View",
    "whole",
]
