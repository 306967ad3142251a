"""y[l, :] = x[r, :] / sqrt(mean(x[r]^2) + eps) * gamma, r = index[l].

x f32[*][width]; index i32[rows]; gamma f32[width]; y f32[rows][width]. A workgroup: one row.
"""

from __future__ import annotations

from bitnet_toy.kernels.floats import F32, I32
from bitnet_toy.kernels.quantize import norm_factor


def rms_norm(gx: int, gy: int, x: F32, index: I32, gamma: F32, y: F32, rows: int, width: int, eps: float) -> None:
    first = index[gx] * width
    factor = norm_factor(x, first, width, eps)
    for k in range(width):
        y[gx * width + k] = x[first + k] * factor * gamma[k]
