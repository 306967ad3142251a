"""m = act(gate) * up, optionally normed, then int8 per row.

gate_up f32[rows][2][width]; gamma f32[width]; q i8[rows][stride]; scale f32[rows]; qsum i32[rows].
A workgroup: one row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bitnet_toy.kernels.floats import F32, I8, I32, ONE, ZERO, device_function
from bitnet_toy.kernels.quantize import norm_factor, quantize_row


@device_function
def relu2(gate: Any) -> Any:
    """Return max(gate, 0)^2; NaN stays NaN."""
    return ZERO if gate <= ZERO else gate * gate


def glu_norm_quantize(
    gx: int,
    gy: int,
    gate_up: F32,
    gamma: F32,
    q: I8,
    scale: F32,
    qsum: I32,
    rows: int,
    width: int,
    stride: int,
    eps: float,
    ACT: int,
    NORM: int,
    ABLOCK: int,
) -> None:
    m = np.empty(width, dtype=np.float32)
    for k in range(width):
        gate, up = gate_up[2 * gx * width + k], gate_up[(2 * gx + 1) * width + k]
        m[k] = up * (gate / (ONE + np.exp(-gate)) if ACT == 1 else relu2(gate))
    if NORM:
        factor = norm_factor(m, 0, width, eps)
        for k in range(width):
            m[k] = m[k] * factor * gamma[k]
    quantize_row(m, q, scale, qsum, gx, stride, ABLOCK)
