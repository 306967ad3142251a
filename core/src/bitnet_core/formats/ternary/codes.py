"""Codes (value + 1: 0, 1, 2) and their canonical packing, shared by all codecs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError
from bitnet_core.model.weights import BLOCK, TernaryWeight, padded

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

CHUNK = 1 << 22
"""Codes that are unpacked at a time, so that a large tensor needs little more memory than its packed form."""
_WORDS = np.uint64(0x5555555555555555)


def pack(codes: Bytes) -> Bytes:
    """Codes u8[rows, columns] -> canonical bytes u8[rows, padded(columns) / 4]; padding columns get code 1 (zero)."""
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
    """Canonical bytes u8[rows, width / 4] -> codes u8[rows, columns]."""
    rows, row_bytes = packed.shape
    quarters = packed.reshape(rows, row_bytes // 32, 1, 32) >> np.array([6, 4, 2, 0], np.uint8).reshape(4, 1)
    return (quarters & np.uint8(3)).reshape(rows, row_bytes * 4)[:, :columns]


def row_chunks(rows: int, columns: int, multiple: int = 1) -> Iterator[slice]:
    """Slices of rows, each a multiple of `multiple` rows (but the last) of about CHUNK codes."""
    step = max(CHUNK // max(columns, 1) // multiple, 1) * multiple
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def pack_rows(rows: int, columns: int, codes_of: Callable[[slice], Bytes], multiple: int = 1) -> Bytes:
    """Canonical bytes of a matrix whose codes u8[n, columns] are produced for one slice of rows at a time."""
    packed = np.empty((rows, padded(columns) // 4), np.uint8)
    for part in row_chunks(rows, columns, multiple):
        packed[part] = pack(codes_of(part))
    return packed


def first_illegal(data: Bytes) -> int:
    """Index of the first byte that holds the code 3 in any of its four bit pairs, or -1."""
    step = 1 << 18
    whole = data.size // 8 * 8
    words = data[:whole].view(np.uint64)
    for start in range(0, words.size, step):
        part = words[start : start + step]
        if (part & (part >> np.uint64(1)) & _WORDS).any():
            return _first(data, start * 8, (start + part.size) * 8)
    return _first(data, whole, data.size)


def _first(data: Bytes, start: int, stop: int) -> int:
    part = data[start:stop]
    found = np.flatnonzero(part & (part >> 1) & 0x55)
    return start + int(found[0]) if found.size else -1


def check_legal(data: Bytes) -> None:
    """Raises ModelError if any byte holds the code 3, which no ternary value has."""
    at = first_illegal(data)
    if at >= 0:
        raise ModelError(f"illegal ternary code 3 in byte {at} of {data.size}: damaged, or another format")


def with_scales(
    rows: int, columns: int, codes: Bytes, scales: Floats, block: int, used: npt.NDArray[np.bool_]
) -> TernaryWeight:
    """A weight with the coarsest scales that say the same as scales f32[rows, columns / block].

    used: whether a block has a non-zero value; the scales of the other blocks have no meaning and agree with any.
    """
    if used.any():
        first = scales[used][0]
        if (scales[used] == first).all():
            return TernaryWeight(rows, columns, codes, np.array([first], np.float32))
    else:
        return TernaryWeight(rows, columns, codes, np.ones(1, np.float32))
    per_row = np.where(used, scales, -np.inf).max(axis=1)
    if (np.where(used, scales, per_row[:, None]) == per_row[:, None]).all():
        per_row = np.where(np.isfinite(per_row), per_row, np.float32(1)).astype(np.float32)
        return TernaryWeight(rows, columns, codes, per_row, "row")
    return TernaryWeight(rows, columns, codes, np.where(used, scales, np.float32(1)), "block", block)
