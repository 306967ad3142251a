"""A sequence of strings in one buffer, such as a vocabulary; each string is decoded on access."""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final, overload

import numpy as np
import numpy.typing as npt

MEAN_LENGTH: Final = 64  # bytes of a short string, its length included
PIECE: Final = 1 << 20  # bytes searched in one pass
_APART: Final = bytes(8)
"""Zeros before each string and after the last one, in place of the lengths in a file."""


class StringTable(Sequence[str]):
    """A sequence of strings in one buffer.

    data: u8, the UTF-8 of each string after 8 zeros, and 8 zeros at the end. starts: i64[n + 1], the offset of each
    string, and the offset after the last one and its zeros.
    """

    def __init__(self, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> None:
        self._data, self._starts = data, starts

    @classmethod
    def of(cls, texts: Iterable[str]) -> StringTable:
        """Build a table from strings; a lone surrogate becomes a question mark."""
        parts = [text.encode("utf-8", "replace") for text in texts]
        data = np.frombuffer(b"".join(_APART + part for part in parts) + _APART, np.uint8)
        sizes = np.fromiter(map(len, parts), np.int64, len(parts))
        return cls(data, np.concatenate([[0], np.cumsum(sizes + 8)]) + 8)

    @classmethod
    def found(cls, buffer: mmap.mmap | bytes, at: int, count: int) -> tuple[StringTable, int] | None:
        """Find `count` strings in a file, each after its u64 length, from byte `at` on; return them and their end.

        A Llama 3 vocabulary has 400,000 strings, so they are searched for in bulk: a string begins at a non-zero byte
        after six zeros (the upper bytes of its length), or, if it is empty, at the next string's length. Returns None
        if that is not possible or the bytes are not such an array: no string may have more than 65,535 bytes or begin
        with a zero byte, the last one must not be empty, and the mean length must be short.
        """
        data = np.frombuffer(buffer, np.uint8)[at : at + MEAN_LENGTH * count]
        starts = _after_zeros(data, count)
        if count == 0 or starts.size < count or starts[0] != 8:
            return None
        sizes = data[starts - 8] + 256 * data[starts - 7].astype(np.int64)
        ends = starts + sizes
        if (ends[:-1] + 8 != starts[1:]).any() or ends[-1] > data.size:
            return None
        kept = np.zeros(int(ends[-1]) + 8, np.uint8)
        kept[:-8] = data[: ends[-1]]
        kept[starts - 8] = kept[starts - 7] = 0
        try:
            kept.tobytes().decode()
        except UnicodeDecodeError:
            return None
        return cls(kept, np.append(starts, ends[-1] + 8)), at + int(ends[-1])

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        start, stop = self._starts[:-1][index], self._starts[1:][index]
        return self._data[start : stop - 8].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        if np.count_nonzero(self._data == 0) > self._data.size - int(self.sizes.sum()):  # some strings contain zeros
            return (self[at] for at in range(len(self)))
        return iter(self._data.tobytes().decode().split("\0" * 8)[1:-1])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and not isinstance(other, str) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as of lists

    def __repr__(self) -> str:
        return repr(list(self))

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of each string, i64[n]."""
        return np.diff(self._starts) - 8

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Characters of each string, i64[n]."""
        first = (self._data & 0xC0) != 0x80  # bytes that begin a character
        if len(self) == 0:
            return np.empty(0, np.int64)
        return np.add.reduceat(first, self._starts[:-1], dtype=np.int64) - 8

    def are_pairs(self) -> bool:
        """Return whether each string is two words with one space between them."""
        spaces = np.flatnonzero(self._data == ord(" "))
        if spaces.size != len(self):
            return False
        return bool(((spaces > self._starts[:-1]) & (spaces + 9 < self._starts[1:])).all())

    def within(self, text: str) -> list[tuple[int, str]]:
        """Return the non-empty strings that occur in a text, with their indices."""
        heads = _eights(np.frombuffer(text.encode() + _APART, np.uint8))[:, None] & _MASKS
        return [(number, found) for number, found in self._beginning(heads.reshape(-1)) if found and found in text]

    def among(self, texts: Collection[str]) -> list[tuple[int, str]]:
        """Return the strings that equal one of `texts`, with their indices."""
        heads = np.frombuffer(b"".join(text.encode()[:8].ljust(8, b"\0") for text in texts), "<u8")
        return [(number, found) for number, found in self._beginning(heads) if found in texts]

    def _beginning(self, heads: npt.NDArray[np.uint64]) -> list[tuple[int, str]]:
        """Return the strings, and perhaps others, whose first 8 bytes (zero-padded) are one of `heads`."""
        wanted = np.sort(heads)
        if wanted.size == 0:
            return []
        own = _eights(self._data)[self._starts[:-1]] & _MASKS[np.minimum(self.sizes, 8)]
        # like np.isin, which would import np.ma
        equal = wanted[np.minimum(np.searchsorted(wanted, own), wanted.size - 1)] == own
        return [(number, self[number]) for number in np.flatnonzero(equal).tolist()]


_MASKS: Final = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
"""Masks of the first 0 to 8 bytes of a word."""


def _eights(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Return u64[n - 7]: the 8 bytes from each offset on, the first in the lowest bits."""
    return np.ndarray((data.size - 7,), "<u8", data.data, strides=(1,))


def _after_zeros(data: npt.NDArray[np.uint8], most: int) -> npt.NDArray[np.int64]:
    """Return the first `most` offsets of a non-zero byte after six zeros.

    The search runs in pieces, because an index takes eight times the memory of its byte.
    """
    found, missing = [np.empty(0, np.int64)], most
    for first in range(0, data.size - 6, PIECE):
        zero = data[first : first + PIECE + 6] == 0
        after = ~zero[6:]
        for at in range(6):
            after &= zero[at : at - 6]
        found.append(np.flatnonzero(after)[:missing] + first + 6)
        missing -= found[-1].size
        if missing == 0:
            break
    return np.concatenate(found)
