"""y[t, y_first + n] (+)= scale[t] * sum_b wscale[n, b] * (sum over block b of (code[n, k] - 1) * q[t, k]).

w u8[outs][width / 4] in I2_S blocks; wscale f32[outs][ceil(width / BLOCK)]; q i8[rows][width]; scale f32[rows];
y f32[rows][y_stride]. A workgroup: TILE_N outputs of TILE_T rows.
"""

from __future__ import annotations

import numpy as np

from bitnet_toy.kernels.floats import F32, I8, U8


def matmul_ternary_block(
    gx: int,
    gy: int,
    w: U8,
    wscale: F32,
    q: I8,
    scale: F32,
    y: F32,
    rows: int,
    outs: int,
    width: int,
    y_stride: int,
    y_first: int,
    ADD: int,
    BLOCK: int,
    TILE_N: int,
    TILE_T: int,
) -> None:
    blocks = (width + BLOCK - 1) // BLOCK
    for t in range(gy * TILE_T, min(rows, (gy + 1) * TILE_T)):
        for n in range(gx * TILE_N, min(outs, (gx + 1) * TILE_N)):
            total = np.float32(0)
            for b in range(blocks):
                inner = 0
                for k in range(b * BLOCK, min(width, (b + 1) * BLOCK)):
                    byte = np.int64(w[n * (width // 4) + k // 128 * 32 + k % 32])
                    inner += ((byte >> (6 - k % 128 // 32 * 2) & 3) - 1) * q[t * width + k]
                total += wscale[n * blocks + b] * np.float32(inner)
            value = scale[t] * total
            at = t * y_stride + y_first + n
            y[at] = y[at] + value if ADD else value
