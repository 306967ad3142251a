"""y[t, y_first + n] (+)= (sum_k code[n, k] * q[t, k] - qsum[t]) * scale[t] * wscale[n].

w u8[outs][width / 4] in I2_S blocks; wscale f32[outs]; q i8[rows][width]; scale f32[rows]; qsum i32[rows];
y f32[rows][y_stride]. A workgroup: TILE_N outputs of TILE_T rows.
"""

from __future__ import annotations

import numpy as np

from bitnet_toy.kernels.floats import F32, I8, I32, U8


def matmul_ternary(
    gx: int,
    gy: int,
    w: U8,
    wscale: F32,
    q: I8,
    scale: F32,
    qsum: I32,
    y: F32,
    rows: int,
    outs: int,
    width: int,
    y_stride: int,
    y_first: int,
    ADD: int,
    TILE_N: int,
    TILE_T: int,
    SPLITS: int,
) -> None:
    for t in range(gy * TILE_T, min(rows, (gy + 1) * TILE_T)):
        for n in range(gx * TILE_N, min(outs, (gx + 1) * TILE_N)):
            total = -np.int64(qsum[t])
            for byte in range(width // 4):
                codes = np.int64(w[n * (width // 4) + byte])
                k = t * width + byte // 32 * 128 + byte % 32  # the byte's first column; the others lie 32 apart
                total += (codes >> 6) * q[k] + (codes >> 4 & 3) * q[k + 32]
                total += (codes >> 2 & 3) * q[k + 64] + (codes & 3) * q[k + 96]
            value = np.float32(total) * scale[t] * wscale[n]
            at = t * y_stride + y_first + n
            y[at] = y[at] + value if ADD else value
