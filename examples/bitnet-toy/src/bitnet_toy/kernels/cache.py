"""Access to rows of the paged KV cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitnet_toy.kernels.floats import (
    F32,
    U8,
    device_function,
    float_to_half,
    read_f16,
    read_f32,
    to_int8,
    write_f32,
)
from bitnet_toy.kernels.tables import signed


@device_function
def row_at(slot: Any, head: int, n_kv_heads: int, row_bytes: int) -> Any:
    """Return the byte offset of (slot, head)."""
    return ((slot // 64 * n_kv_heads + head) * 64 + slot % 64) * row_bytes


@device_function
def store_row(cache: U8, at: int, x: F32, kv: int) -> None:
    """Encode one row: as f32 (kv 0), f16 (1), or an f32 scale and int8 codes (2)."""
    absmax = np.float32(0)
    for value in x:
        absmax = max(absmax, abs(value))
    inverse = np.float32(127) / absmax if absmax > 0 else np.float32(0)
    if kv == 2:
        write_f32(cache, at, absmax / np.float32(127))
    for d in range(len(x)):
        if kv == 0:
            write_f32(cache, at + 4 * d, x[d])
        elif kv == 1:
            bits = float_to_half(x[d])
            cache[at + 2 * d], cache[at + 2 * d + 1] = bits & 255, bits >> 8
        else:
            cache[at + 4 + d] = to_int8(x[d] * inverse) & 255


@device_function
def load(cache: U8, at: int, d: int, kv: int) -> Any:
    """Return element d of the row at byte `at`."""
    if kv == 0:
        return read_f32(cache, at + 4 * d)
    if kv == 1:
        return read_f16(cache, at + 2 * d)
    return read_f32(cache, at) * np.float32(signed(cache[at + 4 + d]))
