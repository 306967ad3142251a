"""TQ1_0 of ggml: 256 elements in 54 bytes: qs[48], qh[4], then an f16 scale; five digits in a byte.

Byte m < 32 of qs holds elements m + 32 n; byte 32 + m (m < 16) elements 160 + m + 16 n; n = 0..4, most significant
first. Byte j of qh holds elements 240 + j + 4 n, n = 0..3, and a fifth digit 0.
"""

from __future__ import annotations

import numpy as np

from bitnet_core.formats.ternary.base3 import DIGITS, to_bytes
from bitnet_core.formats.ternary.blocks import decode_blocks, encode_blocks
from bitnet_core.formats.ternary.codes import Bytes
from bitnet_core.model.weights import TernaryWeight

BLOCK = 256


def codes_of(blocks: Bytes) -> Bytes:
    """Decode blocks u8[n, 54] to codes u8[n, 256]."""
    n = len(blocks)
    digits = DIGITS[blocks[:, :52]].swapaxes(1, 2)  # [n, digit, byte]
    parts = digits[:, :, :32], digits[:, :, 32:48], digits[:, :4, 48:]
    return np.concatenate([part.reshape(n, -1) for part in parts], axis=1)


def _bytes_of(codes: Bytes) -> Bytes:
    n = len(codes)
    last = np.zeros((n, 5, 4), np.uint8)
    last[:, :4] = codes[:, 240:].reshape(n, 4, 4)
    digits = codes[:, :160].reshape(n, 5, 32), codes[:, 160:240].reshape(n, 5, 16), last
    return to_bytes(np.concatenate(digits, axis=2).swapaxes(1, 2))


def decode(data: Bytes, rows: int, columns: int) -> TernaryWeight:
    """Decode the matrix in `data`; every byte is legal."""
    return decode_blocks(data, rows, columns, BLOCK, codes_of, scale_at=52)


def encode(weight: TernaryWeight) -> Bytes:
    """Encode the matrix with scales rounded to f16. Raises ModelError if shape or scales do not fit."""
    return encode_blocks(weight, BLOCK, 54, _bytes_of, scale_at=52)
