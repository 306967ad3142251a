"""Q2_0: an f16 scale, then codes, four consecutive elements in a byte, the first in bits 1-0.

ggml has blocks of 64 elements (18 bytes); early PrismML files have blocks of 128 (34 bytes) under the same type id, and
later ones under a separate type, PQ2_0.
"""

from __future__ import annotations

import threading
from functools import reduce

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError
from bitnet_core.formats.ternary.blocks import encode_blocks, illegal_codes
from bitnet_core.formats.ternary.codes import Bytes, row_chunks
from bitnet_core.formats.ternary.scales import collapse
from bitnet_core.formats.threads import in_threads
from bitnet_core.model.weights import TernaryWeight, padded

_SHIFTS = np.array([0, 2, 4, 6], np.uint8)
_ZEROS = np.uint64(0x5555555555555555)
"""32 codes of zero."""
_WORD = 32
"""Codes per word."""
_CHUNKS = 2
"""Multiples of CHUNK converted in one pass: nothing is unpacked, and with smaller passes threads wait for the
interpreter's lock."""
_STEPS = (
    (2, 0x3333333333333333, 1),
    (4, 0x0F0F0F0F0F0F0F0F, 2),
    (8, 0x00FF00FF00FF00FF, 1),
    (16, 0x0000FFFF0000FFFF, 2),
)
"""Steps that transpose 4 x 4 bit pairs, then 4 x 4 bytes: (shift in bits, mask, distance of the two words)."""

Words = npt.NDArray[np.uint64]


class _Room(threading.local):
    """Two scratch arrays of each thread for a chunk of a matrix: allocating them each time costs more than the
    arithmetic."""

    def __init__(self, words: int) -> None:
        self.words, self.planes = np.empty(words, np.uint64), np.empty(words, np.uint64)


def decode(data: Bytes, rows: int, columns: int, block: int = 64) -> TernaryWeight:
    """Decode the matrix in `data`, in blocks of 64 or 128 elements. Raises ModelError for an illegal code."""
    if columns % block:
        raise ModelError(f"{columns} columns are not a multiple of {block}")
    codes = f"V{block // 4}"  # a void dtype, so that a block's codes are copied as a whole
    blocks, width = columns // block, padded(columns)
    raw = data.view([("scale", "<f2"), ("codes", codes)]).reshape(rows, blocks)
    packed = np.empty((rows, width // 4), np.uint8)
    scales = np.empty((rows, blocks), np.float32)
    used = np.empty((rows, blocks), np.bool_)
    chunks = list(row_chunks(rows, columns, chunks=_CHUNKS))
    room = _Room(max(chunk.stop - chunk.start for chunk in chunks) * width // _WORD)

    def take(part: slice) -> int:
        size = (part.stop - part.start) * width // _WORD
        words, other = room.words[:size].reshape(-1, width // _WORD), room.planes[:size].reshape(-1, width // _WORD)
        words.view(codes)[:, :blocks] = raw["codes"][part]
        words[:, columns // _WORD :] = _ZEROS
        scales[part] = raw["scale"][part]
        if (scales[part] == 0).any():  # a scale of 0 makes every value 0
            words.reshape(len(words), -1, block // _WORD)[:, :blocks][scales[part] == 0] = _ZEROS
        np.bitwise_xor(words, _ZEROS, out=other)
        of_blocks = other.reshape(len(words), -1, block // _WORD)[:, :blocks]
        used[part] = reduce(np.bitwise_or, of_blocks.transpose(2, 0, 1)) != 0
        np.right_shift(words, np.uint64(1), out=other)
        other &= words
        other &= _ZEROS
        illegal = int(np.unpackbits(other.view(np.uint8)).sum()) if np.bitwise_or.reduce(other, axis=None) else 0
        _in_planes(words.reshape(-1), other.reshape(-1), packed[part].view("<u4").reshape(-1, 2, 4))
        return illegal

    if illegal := sum(in_threads(take, chunks)):
        raise illegal_codes(illegal, rows * columns)
    return collapse(rows, columns, packed, scales, used, block)


def _in_planes(words: Words, room: Words, packed: npt.NDArray[np.uint32]) -> None:
    """Convert words u64[blocks * 4], which are overwritten, to canonical packing u32[blocks, 2, 4]. room: scratch,
    u64[blocks * 4].

    Byte a of word p of a block of 128 columns has columns 32 p + 4 a + r, r from 0 to 3; byte 4 a + r must get them for
    p from 3 to 0. First the words, in reverse order, are transposed against the bit pairs of their bytes; then, in
    either half, the words against their bytes.
    """
    planes = room.reshape(4, -1)
    for plane, word in zip(planes, (3, 2, 1, 0), strict=True):
        plane[:] = words[word::4]
    moved = words[: words.size // 2].reshape(2, -1)
    for bits, mask, far in _STEPS:
        low, high = (planes[::2], planes[1::2]) if far == 1 else (planes[:2], planes[2:])
        _exchange(low, high, np.uint64(bits), np.uint64(mask), moved)
    for r, plane in enumerate(planes):
        packed[:, :, r] = plane.view("<u4").reshape(-1, 2)


def _exchange(low: Words, high: Words, bits: np.uint64, mask: np.uint64, moved: Words) -> None:
    """Exchange the bits of `low` above `mask` with the bits of `high` in it. moved: scratch of the same shape."""
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
    """Encode the matrix with scales rounded to f16. Raises ModelError if shape or scales do not fit."""
    return encode_blocks(weight, block, 2 + block // 4, _bytes_of, scale_at=0)
