"""y = x / sqrt(mean(x^2) + eps) * gamma (NORM 1) or x (NORM 0), then int8 per row, or per ABLOCK columns.

x f32[rows][width]; gamma f32[width]; q i8[rows][stride]; scale f32, qsum i32,
[rows] or [rows][stride / 32]. A workgroup: one row.
"""

from __future__ import annotations

from bitnet_toy.kernels.floats import F32, I8, I32
from bitnet_toy.kernels.quantize import norm_factor, quantize_row


def rms_norm_quantize(
    gx: int,
    gy: int,
    x: F32,
    gamma: F32,
    q: I8,
    scale: F32,
    qsum: I32,
    rows: int,
    width: int,
    stride: int,
    eps: float,
    NORM: int,
    ABLOCK: int,
) -> None:
    y = x[gx * width : (gx + 1) * width].copy()
    if NORM:
        factor = norm_factor(x, gx * width, width, eps)
        for k in range(width):
            y[k] = y[k] * factor * gamma[k]
    quantize_row(y, q, scale, qsum, gx, stride, ABLOCK)
