"""Q2_0: an f16 scale, then codes, four consecutive elements in a byte, the first in bits 1-0.

ggml has blocks of 64 elements (18 bytes); early PrismML files have blocks of 128 (34 bytes) under the same type id, and
later ones under a type of their own, PQ2_0.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from bitnet_core.formats.ternary.blocks import decode_blocks, encode_blocks
from bitnet_core.formats.ternary.codes import Bytes
from bitnet_core.model.weights import TernaryWeight

_SHIFTS = np.array([0, 2, 4, 6], np.uint8)


def _codes_of(blocks: Bytes, block: int) -> Bytes:
    codes: Bytes = (blocks[:, 2:, None] >> _SHIFTS) & np.uint8(3)
    return codes.reshape(-1, block)


def decode(data: Bytes, rows: int, columns: int, block: int = 64) -> TernaryWeight:
    """The matrix in `data`, in blocks of 64 or 128 elements. Raises ModelError for an illegal code."""
    return decode_blocks(data, rows, columns, block, partial(_codes_of, block=block), scale_at=0)


def _bytes_of(codes: Bytes) -> Bytes:
    quarters = codes.reshape(len(codes), -1, 4) << _SHIFTS
    packed: Bytes = np.bitwise_or.reduce(quarters, axis=2)
    return packed


def encode(weight: TernaryWeight, block: int = 64) -> Bytes:
    """Bytes of the matrix, with its scales rounded to f16. Raises ModelError where shape or scales do not fit."""
    return encode_blocks(weight, block, 2 + block // 4, _bytes_of, scale_at=0)
