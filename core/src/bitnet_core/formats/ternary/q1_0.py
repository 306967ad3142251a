"""Q1_0: an f16 scale d, then a bit for each of 128 elements, the first in bit 0: d if it is set, else -d.

Binary weights are ternary weights without a zero: codes 2 and 0.
"""

from __future__ import annotations

import numpy as np

from bitnet_core.formats.ternary.blocks import decode_blocks
from bitnet_core.formats.ternary.codes import Bytes
from bitnet_core.model.weights import TernaryWeight

BLOCK = 128


def codes_of(blocks: Bytes) -> Bytes:
    """Decode blocks u8[n, 18] to codes u8[n, 128]."""
    bits: Bytes = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little")
    return bits << np.uint8(1)


def decode(data: Bytes, rows: int, columns: int) -> TernaryWeight:
    """Decode the matrix in `data`; every byte is legal."""
    return decode_blocks(data, rows, columns, BLOCK, codes_of, scale_at=0)
