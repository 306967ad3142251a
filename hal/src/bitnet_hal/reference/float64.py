"""Functions in float64, the reference for rounding and for the kit's tolerances."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def hadamard(x: Array, block: int) -> Array:
    """Multiply every `block` columns of x f64[..., K] by H[i, j] = (-1)^popcount(i & j) / sqrt(block)."""
    parts = x.reshape(-1, block)
    distance = 1
    while distance < block:
        pairs = parts.reshape(-1, block // (2 * distance), 2, distance)
        parts = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2)
        distance *= 2
    return np.asarray(parts.reshape(x.shape) / np.sqrt(block))


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))
