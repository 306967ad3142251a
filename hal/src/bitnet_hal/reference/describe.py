"""DeviceInfo of the numpy device. It does not import numpy: listing devices needs no arithmetic."""

from __future__ import annotations

import platform
import sys
from types import MappingProxyType

import importlib_metadata
from bitnet_hal.device import ANY_ROWS, DeviceInfo, DeviceType, TransferMode
from bitnet_hal.host_memory import total_memory
from bitnet_hal.kernels.catalogue import CATALOGUE, DELTA_KERNELS, EXPERT_KERNELS

ALIGNMENT = 64
"""Bytes; the alignment that SIMD loads of other CPU devices need, so that unaligned plans fail on this device too."""


def numpy_info() -> DeviceInfo:
    """Return the description of the only device of the numpy backend."""
    total = total_memory()
    version = _version()
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
        kernels=frozenset({"top_k", "window_attention", *DELTA_KERNELS, *EXPERT_KERNELS}),
        features=frozenset({"timings"}),
        batch_invariant_rows=MappingProxyType(dict.fromkeys(CATALOGUE, ANY_ROWS)),
        extra=MappingProxyType({"active_kernel": "numpy"}),
    )


def _version() -> str:
    """Return numpy's version from its metadata, or from the module if it is imported or has no metadata (frozen
    programs)."""
    if "numpy" not in sys.modules:
        try:
            return importlib_metadata.version("numpy")
        except importlib_metadata.PackageNotFoundError:
            pass
    import numpy as np

    return np.__version__
