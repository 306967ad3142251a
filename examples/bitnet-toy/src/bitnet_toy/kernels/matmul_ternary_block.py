"""y[t, y_first + n] (+)= sum_b wscale[n, b] * (sum over block b of (code[n, k] - 1) * q[t, k]) * scale.

w u8[outs][width / 4] in I2_S blocks; wscale f32[outs][ceil(width / BLOCK)]; q i8[rows][width]; scale f32[rows], or
[rows][width / 32] inside the sum; y f32[rows][y_stride]. A workgroup: TILE_N outputs of TILE_T rows.
"""

from __future__ import annotations

import numpy as np

from bitnet_toy.kernels.floats import F32, I8, I32, U8


def matmul_ternary_block(
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
    BLOCK: int,
    ABLOCK: int,
    TILE_N: int,
    TILE_T: int,
    SPLITS: int,
) -> None:
    blocks, part = (width + BLOCK - 1) // BLOCK, 32 if ABLOCK else BLOCK
    for t in range(gy * TILE_T, min(rows, (gy + 1) * TILE_T)):
        for n in range(gx * TILE_N, min(outs, (gx + 1) * TILE_N)):
            total = np.float32(0)
            for first in range(0, width, part):
                inner = 0
                for k in range(first, min(width, first + part)):
                    byte = np.int64(w[n * (width // 4) + k // 128 * 32 + k % 32])
                    inner += ((byte >> (6 - k % 128 // 32 * 2) & 3) - 1) * q[t * width + k]
                scaled = wscale[n * blocks + first // BLOCK] * np.float32(inner)
                total += scaled * scale[(t * width + first) // 32] if ABLOCK else scaled
            value = total if ABLOCK else total * scale[t]
            at = t * y_stride + y_first + n
            y[at] = y[at] + value if ADD else value
