"""The hardware abstraction layer; see `bitnet_core.hal.device` for the contract."""

from bitnet_core.hal.device import (
    API_VERSION,
    FEATURES,
    Backend,
    Buffer,
    Device,
    DeviceInfo,
    DeviceType,
    Grid,
    Kernel,
    MemoryKind,
    Recording,
    SavingDevice,
    TimedDevice,
    TransferMode,
    View,
    whole,
)

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
    "SavingDevice",
    "TimedDevice",
    "TransferMode",
    "View",
    "whole",
]
