"""out[t, h] = sum_p softmax_p(scale * q[t, h] . k[p]) v[p] over positions 0..position[t] of the row's sequence.

q f32[rows][n_heads][head_dim]; caches and tables as in the catalogue; step i32[rows][4]; out as q.
A workgroup: TILE_N heads of TILE_T rows, one pass over the cache with a running maximum.
"""

from __future__ import annotations

import numpy as np

from bitnet_toy.kernels.cache import load, row_at
from bitnet_toy.kernels.floats import F32, I32, U8


def attention(
    gx: int,
    gy: int,
    q: F32,
    k_cache: U8,
    v_cache: U8,
    step: I32,
    tables: I32,
    out: F32,
    rows: int,
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
    row_bytes: int,
    max_blocks: int,
    scale: float,
    KV: int,
    TILE_N: int,
    TILE_T: int,
    SPLITS: int,
) -> None:
    for t in range(gy * TILE_T, min(rows, (gy + 1) * TILE_T)):
        for h in range(gx * TILE_N, min(n_heads, (gx + 1) * TILE_N)):
            first, kv_head = (t * n_heads + h) * head_dim, h // (n_heads // n_kv_heads)
            largest, weights = np.float32(-np.inf), np.float32(0)
            mixed = np.zeros(head_dim, dtype=np.float32)
            for p in range(step[4 * t + 1] + 1):
                slot = np.int64(tables[step[4 * t + 3] * max_blocks + p // 64]) * 64 + p % 64
                at = row_at(slot, kv_head, n_kv_heads, row_bytes)
                score = np.float32(0)
                for d in range(head_dim):
                    score += q[first + d] * load(k_cache, at, d, KV)
                score *= np.float32(scale)
                larger = score if score > largest or np.isnan(score) else largest
                fade, weight = np.exp(largest - larger), np.exp(score - larger)
                largest, weights = larger, weights * fade + weight
                for d in range(head_dim):
                    mixed[d] = mixed[d] * fade + weight * load(v_cache, at, d, KV)
            for d in range(head_dim):
                out[first + d] = mixed[d] / weights if weights != 0 else np.float32(0)
