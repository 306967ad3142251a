"""Rotary embedding, the paged cache, and attention over it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from bitnet_hal.kernels.catalogue import KV_BLOCK
from bitnet_hal.kernels.spec import Constants, Params
from bitnet_hal.reference.quantize import F32, Arrays, rms_normalize, sizes
from bitnet_hal.rounding import ceil_div

U8 = npt.NDArray[np.uint8]


def encode_cache_rows(x: F32, kv: int, row_bytes: int) -> U8:
    """Return x[..., D] as cache rows u8[..., row_bytes] of type kv; `kernels.conventions` gives the layouts."""
    if kv < 2:
        return x.astype("<f4" if kv == 0 else "<f2").view(np.uint8)
    absmax = np.max(np.abs(x), axis=-1, keepdims=True)
    inverse = np.divide(np.float32(127), absmax, out=np.zeros_like(absmax), where=absmax > 0)
    rows = np.zeros((*x.shape[:-1], row_bytes), dtype=np.uint8)
    rows[..., :4] = (absmax / np.float32(127)).astype("<f4").view(np.uint8)
    rows[..., 4 : 4 + x.shape[-1]] = np.rint(x * inverse).astype(np.int8).view(np.uint8)
    return rows


def decode_cache_rows(rows: U8, kv: int, head_dim: int) -> F32:
    """Return f32[..., D] from cache rows of type kv, the inverse of `encode_cache_rows`."""
    rows = np.ascontiguousarray(rows)
    if kv == 0:
        return rows[..., : 4 * head_dim].view("<f4")
    if kv == 1:
        return rows[..., : 2 * head_dim].view("<f2").astype(np.float32)
    scale = rows[..., :4].copy().view("<f4")
    return np.asarray(rows[..., 4 : 4 + head_dim].view(np.int8) * scale, dtype=np.float32)


def _cache(data: npt.NDArray[Any], p: Params) -> U8:
    """Return a cache binding as u8[blocks, kv head, slot in block, row_bytes]."""
    heads, row_bytes = sizes(p, "n_kv_heads", "row_bytes")
    block = heads * KV_BLOCK * row_bytes
    n_blocks = len(data) // block
    return data[: n_blocks * block].reshape(n_blocks, heads, KV_BLOCK, row_bytes)


def _rotate(x: F32, cos: F32, sin: F32, interleaved: bool) -> F32:
    """Return x[T, heads, D], each pair of elements rotated by cos, sin [T, D / 2]."""
    half = x.shape[2] // 2
    if interleaved:
        first = slice(0, None, 2)
        second = slice(1, None, 2)
    else:
        first = slice(0, half)
        second = slice(half, None)
    cos = cos[:, None]
    sin = sin[:, None]
    out = np.empty_like(x)
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., second] * cos + x[..., first] * sin
    return out


def rope_store_kv(a: Arrays, p: Params, c: Constants) -> None:
    """Rotate q and k; write q to its binding, and k and v to the caches."""
    rows, n_heads, n_kv, head_dim = sizes(p, "rows", "n_heads", "n_kv_heads", "head_dim")
    heads = n_heads + 2 * n_kv
    qkv = a["qkv"][: rows * heads * head_dim].reshape(rows, heads, head_dim)
    step = a["step"][: rows * 4].reshape(rows, 4).astype(np.int64)
    rope = a["rope"].reshape(-1, head_dim // 2, 2)[np.maximum(step[:, 1], 0)]
    turned = qkv[:, : n_heads + n_kv]
    if c["QKNORM"]:
        gammas = [a["q_gamma"][:head_dim]] * n_heads + [a["k_gamma"][:head_dim]] * n_kv
        turned = rms_normalize(turned, np.stack(gammas), float(p["eps"]))
    rotated = _rotate(turned, rope[..., 0], rope[..., 1], bool(c["INTERLEAVED"]))
    a["q"][: rows * n_heads * head_dim].reshape(rows, n_heads, head_dim)[:] = rotated[:, :n_heads]
    used = np.flatnonzero((step[:, 1] >= 0) & (step[:, 2] >= 0))
    block, offset = np.divmod(step[used, 2], KV_BLOCK)
    for name, new in (("k_cache", rotated[:, n_heads:]), ("v_cache", qkv[:, n_heads + n_kv :])):
        encoded = encode_cache_rows(np.ascontiguousarray(new[used]), c["KV"], int(p["row_bytes"]))
        _cache(a[name], p)[block, :, offset, : encoded.shape[-1]] = encoded


def _history(cache: U8, blocks: npt.NDArray[np.int64], length: int, kv: int, head_dim: int) -> F32:
    """Return the cached rows of one sequence in order, f32[kv head, length, D]."""
    rows = decode_cache_rows(cache[blocks].transpose(1, 0, 2, 3), kv, head_dim)
    return rows.reshape(rows.shape[0], -1, head_dim)[:, :length]


def attention(a: Arrays, p: Params, c: Constants) -> None:
    """Compute out = softmax(scale * q . K) V for every row and head."""
    _attention(a, p, c, None)


def window_attention(a: Arrays, p: Params, c: Constants) -> None:
    """Compute attention over the last `window` positions of every row."""
    _attention(a, p, c, int(p["window"]))


def _attention(a: Arrays, p: Params, c: Constants, window: int | None) -> None:
    rows, n_heads, n_kv, head_dim = sizes(p, "rows", "n_heads", "n_kv_heads", "head_dim")
    max_blocks = int(p["max_blocks"])
    group = n_heads // n_kv
    q = a["q"][: rows * n_heads * head_dim].reshape(rows, n_kv, group, head_dim)
    out = a["out"][: rows * n_heads * head_dim].reshape(rows, n_kv, group, head_dim)
    step = a["step"][: rows * 4].reshape(rows, 4).astype(np.int64)
    tables = a["tables"].reshape(-1, max_blocks).astype(np.int64)
    k_cache = _cache(a["k_cache"], p)
    v_cache = _cache(a["v_cache"], p)
    out[step[:, 1] < 0] = 0
    for sequence in np.unique(step[step[:, 1] >= 0, 3]):
        mine = np.flatnonzero((step[:, 3] == sequence) & (step[:, 1] >= 0))
        positions = step[mine, 1]
        length = int(positions.max()) + 1
        blocks = tables[sequence, : ceil_div(length, KV_BLOCK)]
        k = _history(k_cache, blocks, length, c["KV"], head_dim)
        v = _history(v_cache, blocks, length, c["KV"], head_dim)
        for t, position in zip(mine, positions, strict=True):
            seen = slice(max(0, position + 1 - window) if window else 0, position + 1)
            out[t] = _attend(q[t], k[:, seen], v[:, seen], np.float32(p["scale"]))


def _attend(q: F32, k: F32, v: F32, scale: np.float32) -> F32:
    """Return the output [kv head, group, D] of one row q [kv head, group, D] over k and v [kv head, length, D].

    One row at a time, because BLAS sums products of several rows in another order.
    """
    scores = (q @ k.transpose(0, 2, 1)) * scale
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.asarray(weights @ v)
