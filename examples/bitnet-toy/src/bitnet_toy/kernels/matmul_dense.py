"""y[l, y_first + n] = sum_k x[l, k] * w[n, k].

x f32[rows][width]; w: outs rows of DTYPE; y f32[rows][y_stride]. A workgroup: TILE_N outputs of TILE_T rows.
"""

from __future__ import annotations

import numpy as np

from bitnet_toy.kernels.floats import F32, U8
from bitnet_toy.kernels.tables import element


def matmul_dense(
    gx: int,
    gy: int,
    x: F32,
    w: U8,
    y: F32,
    rows: int,
    outs: int,
    width: int,
    y_stride: int,
    y_first: int,
    DTYPE: int,
    TILE_N: int,
    TILE_T: int,
) -> None:
    for t in range(gy * TILE_T, min(rows, (gy + 1) * TILE_T)):
        for n in range(gx * TILE_N, min(outs, (gx + 1) * TILE_N)):
            total = np.float32(0)
            for k in range(width):
                total += x[t * width + k] * element(w, DTYPE, n * width + k)
            y[t * y_stride + y_first + n] = total
