"""Elements of dense tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitnet_toy.kernels.floats import U8, device_function, read_bf16, read_f16, read_f32


@device_function
def signed(byte: Any) -> Any:
    """Convert a byte to a signed integer."""
    return np.int64(byte) - (256 if byte > 127 else 0)


@device_function
def element(table: U8, dtype: int, at: int) -> Any:
    """Return element `at` of a table of DTYPE as f32."""
    if dtype == 0:
        return read_f32(table, 4 * at)
    if dtype == 1:
        return read_f16(table, 2 * at)
    if dtype == 2:
        return read_bf16(table, 2 * at)
    if dtype == 3:
        block, i = at // 32 * 34, at % 32
        return read_f16(table, block) * np.float32(signed(table[block + 2 + i]))
    return _q6_k(table, at)


@device_function
def _q6_k(table: U8, at: int) -> Any:
    """Return d * scale * (q - 32) of a q6_K block: ql[128] low nibbles, qh[64] high pairs, i8 scales[16], f16 d."""
    block, i = at // 256 * 210, at % 256
    half, quarter, column = i // 128, i % 128 // 32, i % 32
    low = table[block + 64 * half + 32 * (quarter % 2) + column]
    high = (table[block + 128 + 32 * half + column] >> (2 * quarter)) & 3
    code = np.int64(low & 15 if quarter < 2 else low >> 4) | np.int64(high) << 4
    scale = signed(table[block + 192 + i // 16])
    return read_f16(table, block + 208) * np.float32(scale) * np.float32(code - 32)
