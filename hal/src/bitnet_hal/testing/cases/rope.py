"""Cases of rope_store_kv."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bitnet_hal.kernels.catalogue import KV_BLOCK, KV_TYPES, kv_row_bytes
from bitnet_hal.testing.cases.case import BATCH_ROWS, Array, Case, CaseLaunch, Rng, blank
from bitnet_hal.testing.cases.data import normal, step_rows

N_BLOCKS = 12


def rope_table(positions: int, head_dim: int) -> Array:
    """Return f32[positions, head_dim / 2, 2] of (cos, sin), base 10,000."""
    angles = np.outer(np.arange(positions), 10000.0 ** -(np.arange(head_dim // 2) / (head_dim / 2)))
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)


def head_gammas(rng: Rng, head_dim: int) -> dict[str, Array]:
    """Return random weights of the norms of query and key heads."""
    return {name: rng.uniform(0.2, 2, head_dim).astype(np.float32) for name in ("q_gamma", "k_gamma")}


def _build(
    rng: Rng,
    rows: int,
    heads: tuple[int, int],
    head_dim: int,
    kv: int,
    interleaved: int = 0,
    unused: bool = False,
    norm: int = 0,
) -> CaseLaunch:
    n_heads, n_kv = heads
    row_bytes = kv_row_bytes(kv, head_dim)
    positions = rng.integers(0, 600, rows)
    slots = rng.permutation(N_BLOCKS * KV_BLOCK)[:rows]
    if unused:
        positions[1::3] = -1
        slots[2::3] = -1
    qkv = normal(rng, rows, n_heads + 2 * n_kv, head_dim)
    qkv[0, -1] = 0  # an all-zero row, whose int8 scale is 0
    cache_bytes = N_BLOCKS * n_kv * KV_BLOCK * row_bytes
    used = np.zeros(rows, dtype=np.int64)
    return CaseLaunch(
        {
            "rows": rows,
            "n_heads": n_heads,
            "n_kv_heads": n_kv,
            "head_dim": head_dim,
            "row_bytes": row_bytes,
            "eps": 1e-6,
        },
        {
            "qkv": qkv,
            "step": step_rows(used, positions, slots, used),
            "rope": rope_table(600, head_dim),
            **head_gammas(rng, head_dim),
            "q": blank(rows * n_heads * head_dim, "f32"),
            "k_cache": rng.integers(0, 256, cache_bytes),
            "v_cache": rng.integers(0, 256, cache_bytes),
        },
        {"KV": kv, "INTERLEAVED": interleaved, "QKNORM": norm},
    )


def cases() -> Iterator[Case]:
    """Yield each cache type and pairing, head counts of real models, unused rows, all T."""
    name = "rope_store_kv"
    for kv, cache in enumerate(KV_TYPES):
        for heads, dim in (((4, 4), 64), ((20, 5), 128), ((3, 1), 6)):
            label = f"{cache}-h{heads[0]}-kv{heads[1]}-d{dim}"
            yield Case(name, label, _build, (7, heads, dim, kv))
        yield Case(name, f"{cache}-interleaved", _build, (8, (8, 2), 32, kv, 1))
        yield Case(name, f"{cache}-unused-rows", _build, (33, (2, 1), 64, kv, 0, True))
        yield Case(name, f"{cache}-normed", _build, (7, (16, 8), 128, kv, 0, True, 1))
    yield Case(name, "normed-odd-heads", _build, (5, (3, 1), 6, 0, 0, False, 1))
    yield Case(name, "normed-interleaved", _build, (8, (8, 2), 32, 1, 1, False, 1))
    yield Case(name, "normed-t512", _build, (512, (4, 2), 64, 1, 0, False, 1))
    for rows in (1, 2, 512):
        yield Case(name, f"t{rows}", _build, (rows, (4, 2), 32, 1))


def batches() -> Iterator[Case]:
    """Yield rows with normed heads for the rule of batch invariance."""
    for kv, cache in enumerate(KV_TYPES):
        yield Case("rope_store_kv", f"batch-{cache}", _build, (BATCH_ROWS, (4, 2), 64, kv, 0, False, 1))
