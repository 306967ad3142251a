"""TQ2_0 of ggml: 256 elements in 66 bytes, 64 bytes of codes and then an f16 scale.

Byte m (0..31) of half h: bits 1-0 hold element 128 h + m, bits 3-2 +32, bits 5-4 +64, bits 7-6 +96.
"""

from __future__ import annotations

import numpy as np

from bitnet_core.formats.ternary.blocks import decode_blocks, encode_blocks
from bitnet_core.formats.ternary.codes import Bytes
from bitnet_core.model.weights import TernaryWeight

BLOCK = 256
_SHIFTS = np.array([0, 2, 4, 6], np.uint8).reshape(4, 1)


def codes_of(blocks: Bytes) -> Bytes:
    """Decode blocks u8[n, 66] to codes u8[n, 256]."""
    codes: Bytes = (blocks[:, :64].reshape(-1, 2, 1, 32) >> _SHIFTS) & np.uint8(3)
    return codes.reshape(-1, BLOCK)


def _bytes_of(codes: Bytes) -> Bytes:
    quarters = codes.reshape(-1, 2, 4, 32) << _SHIFTS
    packed: Bytes = np.bitwise_or.reduce(quarters, axis=2)
    return packed.reshape(-1, 64)


def decode(data: Bytes, rows: int, columns: int) -> TernaryWeight:
    """Decode the matrix in `data`. Raises ModelError for an illegal code."""
    return decode_blocks(data, rows, columns, BLOCK, codes_of, scale_at=64)


def encode(weight: TernaryWeight) -> Bytes:
    """Encode the matrix with scales rounded to f16. Raises ModelError if shape or scales do not fit."""
    return encode_blocks(weight, BLOCK, 66, _bytes_of, scale_at=64)
