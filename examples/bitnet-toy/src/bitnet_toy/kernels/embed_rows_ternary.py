"""x[t, k] = (code[r, k] - 1) * wscale[r, k / BLOCK], r = token[t] - first, if the table holds that token.

w u8[count][width / 4] in I2_S blocks; wscale f32[count][ceil(width / BLOCK)]; step i32[rows][4]; x f32[rows][hidden].
A workgroup: TILE_N columns of row gy.
"""

from __future__ import annotations

import numpy as np

from bitnet_toy.kernels.floats import F32, I32, U8


def embed_rows_ternary(
    gx: int,
    gy: int,
    w: U8,
    wscale: F32,
    step: I32,
    x: F32,
    rows: int,
    hidden: int,
    width: int,
    first: int,
    count: int,
    BLOCK: int,
    TILE_N: int,
) -> None:
    token, blocks = np.int64(step[4 * gy]) - first, (width + BLOCK - 1) // BLOCK
    if 0 <= token < count:
        for k in range(gx * TILE_N, min(hidden, (gx + 1) * TILE_N)):
            byte = np.int64(w[token * (width // 4) + k // 128 * 32 + k % 32])
            sign = (byte >> (6 - k % 128 // 32 * 2) & 3) - 1
            x[gy * hidden + k] = np.float32(sign) * wscale[token * blocks + k // BLOCK]
