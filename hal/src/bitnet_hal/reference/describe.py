"""What the numpy device tells of itself, without numpy: lists of devices do not compute."""

from __future__ import annotations

import platform
import sys
from types import MappingProxyType

import importlib_metadata
from bitnet_hal.device import DeviceInfo, DeviceType, TransferMode
from bitnet_hal.host_memory import total_memory
from bitnet_hal.kernels.catalogue import DELTA_KERNELS

ALIGNMENT = 64
"""Bytes; what SIMD loads of other CPU devices like, kept here so that unaligned plans are found early."""


def numpy_info() -> DeviceInfo:
    """The one device of the numpy backend."""
    total, version = total_memory(), _version()
    return DeviceInfo(
        backend="numpy",
        index=0,
        name=f"numpy {version} on {platform.machine()}",
        type=DeviceType.CPU,
        driver=f"numpy {version}",
        total_memory=total,
        max_allocation=total,
        max_binding=total,
        alignment=ALIGNMENT,
        transfer=TransferMode.UNIFIED,
        kernels=frozenset({"top_k", *DELTA_KERNELS}),
        features=frozenset({"timings"}),
        extra=MappingProxyType({"active_kernel": "numpy"}),
    )


def _version() -> str:
    """numpy's own, where it is imported already or a frozen program has no metadata."""
    if "numpy" not in sys.modules:
        try:
            return importlib_metadata.version("numpy")
        except importlib_metadata.PackageNotFoundError:
            pass
    import numpy as np

    return np.__version__
