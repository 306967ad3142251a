"""TQ2_0 of ggml: 256 elements in 66 bytes, 64 bytes of codes and then an f16 scale.

Byte m (0..31) of half h: bits 1-0 hold element 128 h + m, bits 3-2 +32, bits 5-4 +64, bits 7-6 +96.
"""

from __future__ import annotations

from functools import reduce

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError
from bitnet_core.formats.ternary.blocks import encode_blocks, illegal_codes
from bitnet_core.formats.ternary.codes import Bytes, row_chunks
from bitnet_core.formats.ternary.scales import collapse
from bitnet_core.formats.threads import in_threads
from bitnet_core.model.weights import TernaryWeight

BLOCK = 256
_WORDS = BLOCK // 32
"""64-bit words of codes in a block."""
_ZEROS = np.uint64(0x5555555555555555)
"""32 codes of zero."""
_SWAPS = ((np.uint64(2), np.uint64(0x3333333333333333)), (np.uint64(4), np.uint64(0x0F0F0F0F0F0F0F0F)))
"""Steps that reverse the four codes of each byte: (shift in bits, mask)."""
_SHIFTS = np.array([0, 2, 4, 6], np.uint8).reshape(4, 1)


def _bytes_of(codes: Bytes) -> Bytes:
    quarters = codes.reshape(-1, 2, 4, 32) << _SHIFTS
    packed: Bytes = np.bitwise_or.reduce(quarters, axis=2)
    return packed.reshape(-1, 64)


def decode(data: Bytes, rows: int, columns: int) -> TernaryWeight:
    """Decode the matrix in `data`, whose bytes are canonical ones with their codes reversed. Raises ModelError for an
    illegal code."""
    if columns % BLOCK:
        raise ModelError(f"{columns} columns are not a multiple of {BLOCK}")
    blocks = columns // BLOCK
    raw = data.view([("codes", "V64"), ("scale", "<f2")]).reshape(rows, blocks)
    packed = np.empty((rows, columns // 4), np.uint8)
    scales = np.empty((rows, blocks), np.float32)
    used = np.empty((rows, blocks), np.bool_)

    def take(part: slice) -> int:
        words = packed[part].view(np.uint64)
        words.view("V64")[:] = raw["codes"][part]
        scales[part] = raw["scale"][part]
        of_blocks = words.reshape(len(words), blocks, _WORDS)
        if (scales[part] == 0).any():  # a scale of 0 makes every value 0
            of_blocks[scales[part] == 0] = _ZEROS
        used[part] = reduce(np.bitwise_or, (of_blocks ^ _ZEROS).transpose(2, 0, 1)) != 0
        return _reverse(words)

    if illegal := sum(in_threads(take, list(row_chunks(rows, columns)))):
        raise illegal_codes(illegal, rows * columns)
    return collapse(rows, columns, packed, scales, used, BLOCK)


def _reverse(words: npt.NDArray[np.uint64]) -> int:
    """Reverse the codes of each byte in place, and return the number of illegal ones."""
    other = words >> np.uint64(1)
    other &= words
    other &= _ZEROS
    illegal = int(np.unpackbits(other.view(np.uint8)).sum()) if other.any() else 0
    for bits, mask in _SWAPS:
        np.right_shift(words, bits, out=other)
        other &= mask
        words &= mask
        words <<= bits
        words |= other
    return illegal


def encode(weight: TernaryWeight) -> Bytes:
    """Encode the matrix with scales rounded to f16. Raises ModelError if shape or scales do not fit."""
    return encode_blocks(weight, BLOCK, 66, _bytes_of, scale_at=64)
