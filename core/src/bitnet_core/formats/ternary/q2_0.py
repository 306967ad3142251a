"""Q2_0: an f16 scale, then codes, four consecutive elements in a byte, the first in bits 1-0.

ggml has blocks of 64 elements (18 bytes); early PrismML files have blocks of 128 (34 bytes) under the same type id, and
later ones under a type of their own, PQ2_0.
"""

from __future__ import annotations

import numpy as np

from bitnet_core.errors import ModelError
from bitnet_core.formats.ternary.blocks import encode_blocks, illegal_codes
from bitnet_core.formats.ternary.codes import Bytes, each_chunk
from bitnet_core.formats.ternary.scales import collapse
from bitnet_core.model.weights import BLOCK, TernaryWeight, padded

_SHIFTS = np.array([0, 2, 4, 6], np.uint8)
_ZEROS = np.uint8(0x55)
"""Four codes of a zero."""


def decode(data: Bytes, rows: int, columns: int, block: int = 64) -> TernaryWeight:
    """The matrix in `data`, in blocks of 64 or 128 elements. Raises ModelError for an illegal code."""
    if columns % block:
        raise ModelError(f"{columns} columns are no whole blocks of {block}")
    raw, blocks = data.reshape(rows, -1, 2 + block // 4), columns // block
    packed = np.empty((rows, padded(columns) // 4), np.uint8)
    scales = np.empty((rows, blocks), np.float32)
    used = np.empty((rows, blocks), np.bool_)

    def take(part: slice) -> int:
        scale = np.ascontiguousarray(raw[part, :, :2]).view("<f2")[..., 0].astype(np.float32)
        codes = np.ascontiguousarray(raw[part, :, 2:])
        codes[scale == 0] = _ZEROS  # a scale of 0 makes every value 0
        scales[part], used[part] = scale, (codes != _ZEROS).any(axis=2)
        packed[part] = _in_planes(codes.reshape(len(codes), -1))
        pairs = codes & (codes >> np.uint8(1)) & _ZEROS
        return int(np.unpackbits(pairs).sum()) if pairs.any() else 0

    if illegal := sum(each_chunk(take, rows, columns)):
        raise illegal_codes(illegal, rows * columns)
    return collapse(rows, columns, packed, scales, used, block)


def _in_planes(codes: Bytes) -> Bytes:
    """Bytes u8[rows, columns / 4] in canonical packing, u8[rows, padded(columns) / 4].

    Byte 8 p + a of a block of 128 columns has columns 32 p + 4 a + r, for r from 0 to 3, and byte 4 a + r is to have
    them for p from 3 to 0: the 4 x 4 pairs of bits of four bytes, from the last plane to the first, change places.
    """
    rows, width = codes.shape
    if width % (BLOCK // 4):
        codes = np.pad(codes, ((0, 0), (0, -width % (BLOCK // 4))), constant_values=_ZEROS)
    planes = codes.reshape(-1, 4, 8)[:, ::-1].transpose(0, 2, 1)
    words = np.ascontiguousarray(planes).reshape(-1).view("<u8")
    for distance, mask in ((6, 0x00CC00CC00CC00CC), (12, 0x0000F0F00000F0F0)):
        moved = words >> np.uint64(distance)
        moved ^= words
        moved &= np.uint64(mask)
        words ^= moved
        moved <<= np.uint64(distance)
        words ^= moved
    return words.view(np.uint8).reshape(rows, -1)


def _bytes_of(codes: Bytes) -> Bytes:
    quarters = codes.reshape(len(codes), -1, 4) << _SHIFTS
    packed: Bytes = np.bitwise_or.reduce(quarters, axis=2)
    return packed


def encode(weight: TernaryWeight, block: int = 64) -> Bytes:
    """Bytes of the matrix, with its scales rounded to f16. Raises ModelError where shape or scales do not fit."""
    return encode_blocks(weight, block, 2 + block // 4, _bytes_of, scale_at=0)
