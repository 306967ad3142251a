"""Q2_0: an f16 scale, then codes, four consecutive elements in a byte, the first in bits 1-0.

ggml has blocks of 64 elements (18 bytes); early PrismML files have blocks of 128 (34 bytes) under the same type id, and
later ones under a type of their own, PQ2_0.
"""

from __future__ import annotations

from functools import reduce

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError
from bitnet_core.formats.ternary.blocks import encode_blocks, illegal_codes
from bitnet_core.formats.ternary.codes import Bytes, each_chunk
from bitnet_core.formats.ternary.scales import collapse
from bitnet_core.model.weights import BLOCK, TernaryWeight, padded

_SHIFTS = np.array([0, 2, 4, 6], np.uint8)
_ZEROS = np.uint64(0x5555555555555555)
"""32 codes of a zero."""
_WORD = 32
"""Codes in a word."""
_STEPS = (
    (2, 0x3333333333333333, 1),
    (4, 0x0F0F0F0F0F0F0F0F, 2),
    (8, 0x00FF00FF00FF00FF, 1),
    (16, 0x0000FFFF0000FFFF, 2),
)
"""Of a transposition of 4 x 4 pairs of bits, then of 4 x 4 bytes: bits to move by, which, and between which words."""

Words = npt.NDArray[np.uint64]


def decode(data: Bytes, rows: int, columns: int, block: int = 64) -> TernaryWeight:
    """The matrix in `data`, in blocks of 64 or 128 elements. Raises ModelError for an illegal code."""
    if columns % block:
        raise ModelError(f"{columns} columns are no whole blocks of {block}")
    blocks = columns // block
    raw = data.view([("scale", "<f2"), ("codes", f"V{block // 4}")]).reshape(rows, blocks)  # fields are copied whole
    packed = np.empty((rows, padded(columns) // 4), np.uint8)
    scales = np.empty((rows, blocks), np.float32)
    used = np.empty((rows, blocks), np.bool_)

    def take(part: slice) -> int:
        scale = raw[part]["scale"].astype(np.float32)
        codes = np.ascontiguousarray(raw[part]["codes"]).view("<u8").reshape(*scale.shape, -1)
        codes[scale == 0] = _ZEROS  # a scale of 0 makes every value 0
        scales[part], used[part] = scale, reduce(np.bitwise_or, (codes ^ _ZEROS).transpose(2, 0, 1)) != 0
        words = codes.reshape(len(codes), -1)
        packed[part] = _in_planes(words)
        pairs = words & (words >> np.uint64(1)) & _ZEROS
        return int(np.unpackbits(pairs.view(np.uint8)).sum()) if pairs.any() else 0

    if illegal := sum(each_chunk(take, rows, columns)):
        raise illegal_codes(illegal, rows * columns)
    return collapse(rows, columns, packed, scales, used, block)


def _in_planes(words: Words) -> Bytes:
    """Words u64[rows, columns / 32] in canonical packing, u8[rows, padded(columns) / 4].

    Byte a of word p of a block of 128 columns has columns 32 p + 4 a + r, r from 0 to 3, and byte 4 a + r is to have
    them for p from 3 to 0. First the words, from the last plane to the first, and the pairs of bits of their bytes
    change places, then, in either half, the words and their bytes.
    """
    rows, width = words.shape
    if width % (BLOCK // _WORD):
        words = np.pad(words, ((0, 0), (0, -width % (BLOCK // _WORD))), constant_values=_ZEROS)
    quarters = words.reshape(-1, BLOCK // _WORD)
    planes = [np.ascontiguousarray(quarters[:, p]) for p in (3, 2, 1, 0)]
    moved = np.empty_like(planes[0])
    for bits, mask, far in _STEPS:
        for first in (0, 3 - far):
            _exchange(planes[first], planes[first + far], np.uint64(bits), np.uint64(mask), moved)
    result = np.empty((len(quarters), 2, 4), np.uint32)
    for r, plane in enumerate(planes):
        result[:, :, r] = plane.view("<u4").reshape(-1, 2)
    return result.view(np.uint8).reshape(rows, -1)


def _exchange(low: Words, high: Words, bits: np.uint64, mask: np.uint64, moved: Words) -> None:
    """The bits of `low` above those in `mask` change places with the bits of `high` in it. moved: room for as many."""
    np.right_shift(low, bits, out=moved)
    moved ^= high
    moved &= mask
    high ^= moved
    moved <<= bits
    low ^= moved


def _bytes_of(codes: Bytes) -> Bytes:
    quarters = codes.reshape(len(codes), -1, 4) << _SHIFTS
    packed: Bytes = np.bitwise_or.reduce(quarters, axis=2)
    return packed


def encode(weight: TernaryWeight, block: int = 64) -> Bytes:
    """Bytes of the matrix, with its scales rounded to f16. Raises ModelError where shape or scales do not fit."""
    return encode_blocks(weight, block, 2 + block // 4, _bytes_of, scale_at=0)
