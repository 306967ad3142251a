"""Codes (value + 1: 0, 1, 2) and their canonical packing, shared by all codecs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError
from bitnet_core.model.weights import BLOCK, padded

Bytes = npt.NDArray[np.uint8]

CHUNK = 1 << 22
"""Codes unpacked in one pass, so that a large tensor needs little more memory than its packed form."""
_WORDS = np.uint64(0x5555555555555555)


def pack(codes: Bytes) -> Bytes:
    """Pack codes u8[rows, columns] into canonical bytes u8[rows, padded(columns) / 4]; padding columns get code 1
    (zero)."""
    rows, columns = codes.shape
    width = padded(columns)
    if width != columns:
        codes = np.pad(codes, ((0, 0), (0, width - columns)), constant_values=1)
    quarters = codes.reshape(rows, width // BLOCK, 4, 32)
    packed: Bytes = quarters[:, :, 0] << np.uint8(6)
    packed |= quarters[:, :, 1] << np.uint8(4)
    packed |= quarters[:, :, 2] << np.uint8(2)
    packed |= quarters[:, :, 3]
    return packed.reshape(rows, width // 4)


def unpack(packed: Bytes, columns: int) -> Bytes:
    """Unpack canonical bytes u8[rows, width / 4] to codes u8[rows, columns]."""
    rows, row_bytes = packed.shape
    quarters = packed.reshape(rows, row_bytes // 32, 1, 32) >> np.array([6, 4, 2, 0], np.uint8).reshape(4, 1)
    return (quarters & np.uint8(3)).reshape(rows, row_bytes * 4)[:, :columns]


def row_chunks(rows: int, columns: int, multiple: int = 1, chunks: int = 1) -> Iterator[slice]:
    """Yield slices of rows of about `chunks` times CHUNK codes; each but the last has a multiple of `multiple` rows."""
    step = max(CHUNK * chunks // max(columns, 1) // multiple, 1) * multiple
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def pack_rows(rows: int, columns: int, codes_of: Callable[[slice], Bytes], multiple: int = 1) -> Bytes:
    """Return the canonical bytes of a matrix; `codes_of` produces the codes u8[n, columns] of a slice of rows."""
    packed = np.empty((rows, padded(columns) // 4), np.uint8)
    for part in row_chunks(rows, columns, multiple):
        packed[part] = pack(codes_of(part))
    return packed


def first_illegal(data: Bytes) -> int:
    """Return the index of the first byte that holds the code 3 in any of its four bit pairs, or -1."""
    step = 1 << 17  # words: two such arrays fit the CPU's cache, and threads seldom contend for the interpreter's lock
    whole = data.size // 8 * 8
    words = data[:whole].view(np.uint64)
    pairs = np.empty(min(step, words.size), np.uint64)
    for start in range(0, words.size, step):
        part = words[start : start + step]
        both = pairs[: part.size]
        np.right_shift(part, np.uint64(1), out=both)
        np.bitwise_and(both, part, out=both)
        if np.bitwise_or.reduce(both) & _WORDS:
            return _first(data, start * 8, (start + part.size) * 8)
    return _first(data, whole, data.size)


def _first(data: Bytes, start: int, stop: int) -> int:
    part = data[start:stop]
    found = np.flatnonzero(part & (part >> 1) & 0x55)
    return start + int(found[0]) if found.size else -1


def check_legal(data: Bytes) -> None:
    """Raise ModelError if any byte holds the code 3, which is not a ternary value."""
    at = first_illegal(data)
    if at >= 0:
        raise ModelError(f"illegal ternary code 3 in byte {at} of {data.size}: damaged, or another format")
