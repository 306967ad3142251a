"""Transfers of any number of bytes with a driver that moves whole words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import pytest
from bitnet_hal.device import DeviceInfo, DeviceType, MemoryKind, View, whole
from bitnet_hal.driver.word_transfers import PART, WordDevice, words_of


@dataclass(eq=False)
class Memory:
    nbytes: int
    kind: MemoryKind = MemoryKind.DEVICE
    data: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self.data = bytearray(words_of(self.nbytes))


class Words(WordDevice[Memory, Any]):
    """A device that rejects partial words, as such a driver does."""

    def __init__(self) -> None:
        super().__init__(DeviceInfo("toy", 0, "words", DeviceType.GPU))

    def _alloc(self, nbytes: int, kind: MemoryKind) -> Memory:
        return Memory(nbytes, kind)

    def _write(self, buffer: Memory, offset: int, source: memoryview) -> None:
        assert 0 < len(source) <= PART
        assert len(source) % 4 == offset % 4 == 0
        assert offset + len(source) <= len(buffer.data)
        buffer.data[offset : offset + len(source)] = source

    def _read(self, buffer: Memory, offset: int, nbytes: int) -> bytes:
        assert 0 < nbytes <= PART
        assert offset + words_of(nbytes) <= len(buffer.data)
        return bytes(buffer.data[offset : offset + nbytes])

    def _move(self, source: Memory, source_at: int, target: Memory, target_at: int, nbytes: int) -> None:
        assert nbytes > 0
        assert nbytes % 4 == 0
        target.data[target_at : target_at + nbytes] = source.data[source_at : source_at + nbytes]

    def _none(self, *_: object) -> NoReturn:
        raise AssertionError("nothing is launched here")

    def _done(self, *_: object) -> None:
        """Return at once: nothing is queued."""

    free_memory = tuning = _compile = _run = _none
    _free = _wait = _close = _done


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 1023, PART, PART + 1, PART + 7])
@pytest.mark.parametrize("offset", [0, 4, 28])
def test_any_number_of_bytes_and_no_neighbour(size: int, offset: int) -> None:
    device, random = Words(), np.random.default_rng(size)
    sent, before = random.bytes(size), random.bytes(size + 64)
    one, other = device.alloc(size + 64), device.alloc(size + offset)
    device.upload(whole(one), memoryview(before))
    device.upload(View(one, offset, size), memoryview(sent))
    assert one.data[: size + 64] == before[:offset] + sent + before[offset + size :]
    device.copy(View(one, offset, size), View(other, offset, size))
    found = bytearray(size)
    device.download(View(other, offset, size), memoryview(found))
    assert found == sent
    assert not any(other.data[:offset])
