"""Base class of devices whose drivers transfer whole words of 4 bytes only."""

from __future__ import annotations

from abc import abstractmethod

from bitnet_hal.base import BaseDevice
from bitnet_hal.launches import B, K
from bitnet_hal.rounding import round_up

PART = 4 << 20
"""Maximum bytes of one driver call."""


def words_of(nbytes: int, word: int = 4) -> int:
    """Round `nbytes` up to a multiple of `word` bytes."""
    return round_up(nbytes, word)


class WordDevice(BaseDevice[B, K]):
    """A device that transfers any number of bytes in whole words. Its buffers must extend to a whole last word."""

    @abstractmethod
    def _write(self, buffer: B, offset: int, source: memoryview) -> None:
        """Write whole words, at most PART bytes. The caller may change `source` once this returns."""

    @abstractmethod
    def _read(self, buffer: B, offset: int, nbytes: int) -> bytes:
        """Wait for and return any number of bytes up to PART."""

    @abstractmethod
    def _move(self, source: B, source_at: int, target: B, target_at: int, nbytes: int) -> None:
        """Copy whole words between ranges that do not overlap."""

    def _upload(self, buffer: B, offset: int, source: memoryview) -> None:
        """Write whole words, then merge the remaining bytes into the last word, which is read first."""
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
