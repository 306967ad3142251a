"""Norm (QKNORM) and rotate query and key heads by (cos, sin) of their position; write q, and k and v into the caches.

qkv f32[rows][n_heads + 2 n_kv_heads][head_dim]; step i32[rows][4]; rope f32[positions][head_dim / 2][2];
q_gamma, k_gamma f32[head_dim]; q f32[rows][n_heads][head_dim]; caches as in the catalogue. A workgroup: TILE_N heads of
row gy.
"""

from __future__ import annotations

import numpy as np

from bitnet_toy.kernels.cache import row_at, store_row
from bitnet_toy.kernels.floats import F32, I32, U8
from bitnet_toy.kernels.quantize import norm_factor


def rope_store_kv(
    gx: int,
    gy: int,
    qkv: F32,
    step: I32,
    rope: F32,
    q_gamma: F32,
    k_gamma: F32,
    q: F32,
    k_cache: U8,
    v_cache: U8,
    rows: int,
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
    row_bytes: int,
    eps: float,
    KV: int,
    INTERLEAVED: int,
    QKNORM: int,
    TILE_N: int,
) -> None:
    position, slot = np.int64(step[4 * gy + 1]), np.int64(step[4 * gy + 2])
    for h in range(gx * TILE_N, min(n_heads + 2 * n_kv_heads, (gx + 1) * TILE_N)):
        first = (gy * (n_heads + 2 * n_kv_heads) + h) * head_dim
        head = qkv[first : first + head_dim].copy()
        if h < n_heads + n_kv_heads:
            if QKNORM:
                factor = norm_factor(qkv, first, head_dim, eps)
                for j in range(head_dim):
                    head[j] = head[j] * factor * (q_gamma[j] if h < n_heads else k_gamma[j])
            for j in range(head_dim // 2):
                one, two = (2 * j, 2 * j + 1) if INTERLEAVED else (j, j + head_dim // 2)
                angle = ((position if position > 0 else 0) * (head_dim // 2) + j) * 2
                cos, sin, a, b = rope[angle], rope[angle + 1], head[one], head[two]
                head[one], head[two] = a * cos - b * sin, b * cos + a * sin
        if h < n_heads:
            q[(gy * n_heads + h) * head_dim : (gy * n_heads + h + 1) * head_dim] = head
        elif position >= 0 and slot >= 0:
            kv_head = (h - n_heads) % n_kv_heads
            cache = k_cache if h < n_heads + n_kv_heads else v_cache
            store_row(cache, row_at(slot, kv_head, n_kv_heads, row_bytes), head, KV)
