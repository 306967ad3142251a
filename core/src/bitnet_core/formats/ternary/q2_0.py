"""Q2_0: an f16 scale, then codes, four consecutive elements in a byte, the first in bits 1-0.

ggml has blocks of 64 elements (18 bytes); early PrismML files have blocks of 128 (34 bytes) under the same type id.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from bitnet_core.formats.ternary.blocks import decode_blocks
from bitnet_core.formats.ternary.codes import Bytes
from bitnet_core.model.weights import TernaryWeight

_SHIFTS = np.array([0, 2, 4, 6], np.uint8)


def _codes_of(blocks: Bytes, block: int) -> Bytes:
    codes: Bytes = (blocks[:, 2:, None] >> _SHIFTS) & np.uint8(3)
    return codes.reshape(-1, block)


def decode(data: Bytes, rows: int, columns: int, block: int = 64) -> TernaryWeight:
    """The matrix in `data`, in blocks of 64 or 128 elements. Raises ModelError for an illegal code."""
    return decode_blocks(data, rows, columns, block, partial(_codes_of, block=block), scale_at=0)
