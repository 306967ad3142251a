"""x[t, :] = table[token[t] - first, :] if the table holds that token.

table: count rows of DTYPE; step i32[rows][4]; x f32[rows][hidden]. A workgroup: TILE_N columns of row gy.
"""

from __future__ import annotations

from bitnet_toy.kernels.floats import F32, I32, U8
from bitnet_toy.kernels.tables import element


def embed_rows(
    gx: int,
    gy: int,
    table: U8,
    step: I32,
    x: F32,
    rows: int,
    hidden: int,
    first: int,
    count: int,
    DTYPE: int,
    TILE_N: int,
) -> None:
    token = step[4 * gy] - first
    if 0 <= token < count:
        for h in range(gx * TILE_N, min(hidden, (gx + 1) * TILE_N)):
            x[gy * hidden + h] = element(table, DTYPE, token * hidden + h)
