"""Shared by the norms: the factor of RMSNorm, and int8 quantization of one row."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitnet_toy.kernels.floats import F32, I8, I32, device_function, to_int8


@device_function
def norm_factor(y: F32, first: int, width: int, eps: float) -> Any:
    """Return 1 / sqrt(mean(y^2) + eps), NaN if the sum is not finite."""
    total = np.float32(0)
    for k in range(width):
        total += y[first + k] * y[first + k]
    mean = total / np.float32(width)
    if not np.isfinite(mean):
        return np.float32(np.nan)
    return np.float32(1) / np.sqrt(mean + eps)


@device_function
def quantize_row(y: F32, q: I8, scale: F32, qsum: I32, row: int, stride: int, ablock: int) -> None:
    """Write q = round(y * 127 / absmax), and zeros up to stride.

    absmax covers `ablock` columns, scale and qsum are stored per 32 columns; with ablock 0 all three cover the row. If
    any value is not finite, scale is NaN and q is 0.
    """
    sound = True
    for value in y:
        sound = sound and np.isfinite(value)
    columns, part = (ablock, 32) if ablock else (stride, stride)
    for block in range(0, stride, columns):
        absmax = np.float32(1e-20 if ablock else 1e-5)
        for k in range(block, min(len(y), block + columns)):
            absmax = max(absmax, abs(y[k]))
        factor = np.float32(127) / absmax
        for first in range(block, block + columns, part):
            at, total = (row * stride + first) // part, 0
            for k in range(first, first + part):
                code = to_int8(y[k] * factor) if sound and k < len(y) else 0
                q[row * stride + k] = code
                total += code
            scale[at] = absmax / np.float32(127) if sound else np.float32(np.nan)
            qsum[at] = total
