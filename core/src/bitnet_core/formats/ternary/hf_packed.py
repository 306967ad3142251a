"""Packed weights of Hugging Face folders: u8[ceil(rows / 4), columns].

Bits 2i+1..2i of byte (r, k) are the code of row i * ceil(rows / 4) + r, column k: the bit pairs hold four slabs of
rows. The last slab is short if the rows are not a multiple of four.
"""

from __future__ import annotations

import numpy as np
from bitnet_hal.rounding import ceil_div

from bitnet_core.formats.ternary.codes import Bytes, check_legal, pack, row_chunks, unpack
from bitnet_core.model.weights import padded


def decode_codes(data: Bytes, rows: int) -> Bytes:
    """Convert packed bytes u8[ceil(rows / 4), columns] to canonical codes. Raises ModelError for an illegal code."""
    check_legal(data.reshape(-1))
    slab, columns = data.shape
    packed = np.empty((rows, padded(columns) // 4), np.uint8)
    for i in range(4):
        start = i * slab
        for part in row_chunks(min(slab, rows - start), columns):
            packed[start + part.start : start + part.stop] = pack((data[part] >> np.uint8(2 * i)) & np.uint8(3))
    return packed


def encode_codes(codes: Bytes, rows: int, columns: int) -> Bytes:
    """Convert canonical codes to packed bytes u8[ceil(rows / 4), columns]; missing rows of the last slab get code 0."""
    slab = ceil_div(rows, 4)
    data = np.zeros((slab, columns), np.uint8)
    for i in range(4):
        start = i * slab
        for part in row_chunks(min(slab, rows - start), columns):
            data[part] |= unpack(codes[start + part.start : start + part.stop], columns) << np.uint8(2 * i)
    return data
