"""PTQ1_0 of PrismML: 128 elements in 28 bytes: qs[24], qh[2], then an f16 scale; five digits in a byte, as in TQ1_0.

Byte m < 16 of qs holds elements m + 16 n; byte 16 + m (m < 8) elements 80 + m + 8 n; n = 0..4, most significant first.
Byte j of qh holds elements 120 + j + 2 n, n = 0..3, and a fifth digit 0.
"""

from __future__ import annotations

import numpy as np

from bitnet_core.formats.ternary.base3 import DIGITS
from bitnet_core.formats.ternary.blocks import decode_blocks
from bitnet_core.formats.ternary.codes import Bytes
from bitnet_core.model.weights import TernaryWeight

BLOCK = 128


def codes_of(blocks: Bytes) -> Bytes:
    """Decode blocks u8[n, 28] to codes u8[n, 128]."""
    n = len(blocks)
    digits = DIGITS[blocks[:, :26]].swapaxes(1, 2)  # [n, digit, byte]
    parts = digits[:, :, :16], digits[:, :, 16:24], digits[:, :4, 24:]
    return np.concatenate([part.reshape(n, -1) for part in parts], axis=1)


def decode(data: Bytes, rows: int, columns: int) -> TernaryWeight:
    """Decode the matrix in `data`; every byte is legal."""
    return decode_blocks(data, rows, columns, BLOCK, codes_of, scale_at=26)
