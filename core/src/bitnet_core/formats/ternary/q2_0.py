"""Q2_0: an f16 scale, then codes, four consecutive elements in a byte, the first in bits 1-0.

ggml has blocks of 64 elements (18 bytes); early PrismML files have blocks of 128 (34 bytes) under the same type id, and
later ones under a separate type, PQ2_0.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from bitnet_hal.rounding import ceil_div

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
_GROUP = 128
"""Columns of a group of canonical packing: four words."""
_CHUNKS = 4
"""Multiple of CHUNK that is converted in one pass: codes stay packed, so memory is small, and with smaller passes
threads wait for the interpreter's lock."""
_STEPS = (
    (2, 0x3333333333333333, 1),
    (4, 0x0F0F0F0F0F0F0F0F, 2),
    (8, 0x00FF00FF00FF00FF, 1),
    (16, 0x0000FFFF0000FFFF, 2),
)
"""Steps that transpose 4 x 4 bit pairs, then 4 x 4 bytes: (shift in bits, mask, distance of the two words)."""

Words = npt.NDArray[np.uint64]


class _Room(threading.local):
    """Scratch of each thread for a chunk of a matrix, u64[4, n] and u64[2, n]: allocating it each time costs more than
    the arithmetic."""

    def __init__(self, size: int) -> None:
        self.words, self.moved = np.empty(4 * size, np.uint64), np.empty(2 * size, np.uint64)


def decode(data: Bytes, rows: int, columns: int, block: int = 64) -> TernaryWeight:
    """Decode the matrix in `data`, in blocks of 64 or 128 elements. Raises ModelError for an illegal code."""
    raw = _blocks(data, rows, columns, block)
    blocks, groups = columns // block, padded(columns) // _GROUP
    packed = np.empty((rows, padded(columns) // 4), np.uint8)
    scales = np.empty((rows, blocks), np.float32)
    used = np.empty((rows, blocks), np.bool_)
    chunks = list(row_chunks(rows, columns, chunks=_CHUNKS))
    room = _Room(max(chunk.stop - chunk.start for chunk in chunks) * groups)

    def take(part: slice) -> int:
        count = (part.stop - part.start) * groups
        words = room.words[: 4 * count].reshape(4, -1, groups)
        moved = room.moved[: 2 * count].reshape(2, -1)
        scales[part] = raw["scale"][part]
        _gather(raw["words"][part], scales[part], words)
        used[part] = _used(words, moved, blocks)
        illegal = _count_illegal(words, moved)
        _in_planes(words.reshape(4, -1), moved, packed[part].view("<u4").reshape(-1, 2, 4))
        return illegal

    if illegal := sum(in_threads(take, chunks)):
        raise illegal_codes(illegal, rows * columns)
    return collapse(rows, columns, packed, scales, used, block)


def stored(data: Bytes, rows: int, columns: int, block: int = 64) -> TernaryWeight:
    """Return the matrix with its blocks as they are (`TernaryWeight.stored`).

    Illegal codes are not found, and a block counts as zeros only if its scale is 0. A matrix with an invalid scale is
    decoded, because it may be the scale of a block of zeros.
    """
    scales = _blocks(data, rows, columns, block)["scale"].astype(np.float32)
    if not ((scales >= 0) & (scales < np.inf)).all():
        return decode(data, rows, columns, block)
    weight = collapse(rows, columns, data.reshape(rows, -1), scales, scales != 0, block)
    return replace(weight, stored=block)


def _blocks(data: Bytes, rows: int, columns: int, block: int) -> npt.NDArray[np.void]:
    """Return the blocks as records (scale f16, words u64[block / 32]) of shape [rows, columns / block]."""
    if columns % block:
        raise ModelError(f"{columns} columns are not a multiple of {block}")
    return data.view([("scale", "<f2"), ("words", "<u8", block // _WORD)]).reshape(rows, columns // block)


def _gather(raw: Words, scales: npt.NDArray[np.float32], words: Words) -> None:
    """Copy raw codes u64[rows, blocks, block / 32] to words u64[4, rows, groups of 128 columns], with zeros for blocks
    with a scale of 0 and behind the last column."""
    per_block = raw.shape[2]
    in_group = len(words) // per_block
    for number, plane in enumerate(words):
        block, word = divmod(number, per_block)
        given = raw[:, block::in_group, word]
        plane[:, : given.shape[1]] = given
        plane[:, given.shape[1] :] = _ZEROS
    if (scales == 0).any():
        for number, plane in enumerate(words):
            zero = scales[:, number // per_block :: in_group] == 0
            plane[:, : zero.shape[1]][zero] = _ZEROS


def _used(words: Words, room: Words, blocks: int) -> npt.NDArray[np.bool_]:
    """Return bool[rows, blocks], true if a block of words u64[4, rows, groups] has a non-zero value. room: scratch,
    u64[2, rows * groups]."""
    rows, groups = words.shape[1:]
    used = np.empty((rows, blocks), np.bool_)
    in_group = ceil_div(blocks, groups)
    per_block = len(words) // in_group
    total, other = room.reshape(2, rows, groups)
    for block in range(in_group):
        np.bitwise_xor(words[block * per_block], _ZEROS, out=total)
        for word in words[block * per_block + 1 : (block + 1) * per_block]:
            np.bitwise_xor(word, _ZEROS, out=other)
            total |= other
        into = used[:, block::in_group]
        np.not_equal(total[:, : into.shape[1]], 0, out=into)
    return used


def _count_illegal(words: Words, room: Words) -> int:
    """Count the codes with both bits set. room: scratch of half the size of `words`."""
    illegal = 0
    for half in words.reshape(2, -1):
        both = room.reshape(-1)
        np.right_shift(half, np.uint64(1), out=both)
        both &= half
        both &= _ZEROS
        if both.any():
            illegal += int(np.unpackbits(both.view(np.uint8)).sum())
    return illegal


def _in_planes(words: Words, moved: Words, packed: npt.NDArray[np.uint32]) -> None:
    """Convert words u64[4, n], which are overwritten, to canonical packing u32[n, 2, 4]. moved: scratch, u64[2, n].

    Byte a of word p of a block of 128 columns has columns 32 p + 4 a + r, r from 0 to 3; byte 4 a + r must get them for
    p from 3 to 0. First the words, in reverse order, are transposed against the bit pairs of their bytes; then, in
    either half, the words against their bytes.
    """
    planes = words[::-1]
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
