"""Transfers of any number of bytes for drivers that move whole words of four."""

from __future__ import annotations

from abc import abstractmethod

from bitnet_hal.base import BaseDevice
from bitnet_hal.launches import B, K
from bitnet_hal.rounding import round_up

PART = 4 << 20
"""Bytes that move at a time."""


def words_of(nbytes: int, word: int = 4) -> int:
    """Bytes of the words that hold so many bytes."""
    return round_up(nbytes, word)


class WordDevice(BaseDevice[B, K]):
    """Its buffers have room for the whole of their last word; offsets are multiples of four, as everywhere."""

    @abstractmethod
    def _write(self, buffer: B, offset: int, source: memoryview) -> None:
        """Whole words, PART bytes at most, which the caller may change when this returns."""

    @abstractmethod
    def _read(self, buffer: B, offset: int, nbytes: int) -> bytes:
        """Any number of bytes up to PART, once they are there."""

    @abstractmethod
    def _move(self, source: B, source_at: int, target: B, target_at: int, nbytes: int) -> None:
        """Whole words, from one place to another that does not overlap it."""

    def _upload(self, buffer: B, offset: int, source: memoryview) -> None:
        """The bytes of a last word together with those that follow them in the buffer."""
        words = len(source) // 4 * 4
        for start in range(0, words, PART):
            self._write(buffer, offset + start, source[start : min(start + PART, words)])
        if rest := bytes(source[words:]):
            last = rest + self._read(buffer, offset + words, 4)[len(rest) :]
            self._write(buffer, offset + words, memoryview(last))

    def _download(self, buffer: B, offset: int, target: memoryview) -> None:
        for start in range(0, len(target), PART):
            part = target[start : start + PART]
            part[:] = self._read(buffer, offset + start, len(part))

    def _copy(self, source: B, source_at: int, target: B, target_at: int, nbytes: int) -> None:
        words = nbytes // 4 * 4
        if words:
            self._move(source, source_at, target, target_at, words)
        if words < nbytes:
            last = self._read(source, source_at + words, nbytes - words)
            self._upload(target, target_at + words, memoryview(last))
