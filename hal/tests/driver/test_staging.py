"""The staging ring: every byte arrives, and no slot is written while the device may read it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bitnet_hal.device import MemoryKind, TransferMode, View, whole
from bitnet_hal.driver import staging
from bitnet_hal.driver.staged_transfers import StagedDevice
from bitnet_hal.driver.staging import StagingRing
from bitnet_hal.reference.device import NumpyBuffer, NumpyDevice, NumpyKernel


class Engine:
    """A device that copies as late as allowed: at the wait for a fence, or at the end."""

    def __init__(self, slots: int, nbytes: int) -> None:
        self.memory = [bytearray(nbytes) for _ in range(slots)]
        self.queue: list[tuple[int, int, int, bytearray, int]] = []
        self.done = self.waits = 0

    def copy(self, slot: int, start: int, nbytes: int, buffer: bytearray, offset: int) -> None:
        self.queue.append((slot, start, nbytes, buffer, offset))

    def fence(self) -> int:
        return len(self.queue)

    def wait(self, fence: int) -> None:
        self.waits += 1
        for slot, start, nbytes, buffer, offset in self.queue[self.done : fence]:
            buffer[offset : offset + nbytes] = self.memory[slot][start : start + nbytes]
        self.done = max(self.done, fence)


@pytest.mark.parametrize("slots", [2, 3, 4])
@pytest.mark.parametrize("least", [staging._LEAST, 16])
def test_every_byte_arrives(slots: int, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte arrives, even if several threads fill a slot."""
    monkeypatch.setattr(staging, "_LEAST", least)
    rng = np.random.default_rng(slots)
    engine = Engine(slots, 256)
    ring = StagingRing([memoryview(slot) for slot in engine.memory], engine)
    target, expected, at = bytearray(20_000), bytearray(20_000), 0
    for size in (1, 0, 255, 256, 257, 3, 63, 64, 65, 1000, 5000, *rng.integers(1, 300, 40).tolist()):
        source = bytearray(rng.bytes(size))
        expected[at : at + size] = source
        ring.upload(target, at, memoryview(source))
        source[:] = bytes(size)  # the caller's again
        at += size
    engine.wait(engine.fence())
    assert target == expected


def test_slots_are_filled_while_others_are_copied() -> None:
    engine = Engine(3, 256)
    ring = StagingRing([memoryview(slot) for slot in engine.memory], engine)
    target = bytearray(1024)
    ring.upload(target, 0, memoryview(bytes(768)))
    assert engine.waits == 0
    ring.upload(target, 768, memoryview(bytes(1)))
    assert (engine.waits, engine.done) == (1, 1)  # for the first slot alone


def test_after_a_wait_for_the_queue_all_slots_are_free() -> None:
    engine = Engine(2, 256)
    ring = StagingRing([memoryview(slot) for slot in engine.memory], engine)
    target = bytearray(1024)
    for turn in range(4):
        ring.upload(target, 0, memoryview(bytes([turn]) * 500))
        engine.wait(engine.fence())
        ring.drained()
    assert engine.waits == 4
    assert target[:500] == bytes([3]) * 500


class StagedNumpy(StagedDevice[NumpyBuffer, NumpyKernel], NumpyDevice):
    """A device whose transfers use slots of 256 bytes."""

    def __init__(self) -> None:
        super().__init__()
        slots = [self._alloc(256, MemoryKind.HOST) for _ in range(3)]
        self._stage(slots, [memoryview(slot.data) for slot in slots])

    def _fence(self) -> None: ...

    def _reach(self, fence: None) -> None: ...


def test_a_device_moves_bytes_through_slots() -> None:
    device = StagedNumpy()
    content = np.random.default_rng(0).integers(0, 256, 1500, dtype=np.uint8)
    buffer = device.alloc(content.nbytes + 40)
    device.upload(View(buffer, 20, content.nbytes), content.data)
    found = np.empty_like(content)
    device.download(View(buffer, 20, content.nbytes), found.data)
    assert np.array_equal(found, content)
    around = np.empty(content.nbytes + 40, np.uint8)
    device.download(whole(buffer), around.data)
    assert not around[:20].any()
    assert not around[-20:].any()
    shared = device.info.transfer is TransferMode.UNIFIED
    assert device.held_bytes() == (3 * 256 if shared else 0)
    device.info = replace(device.info, transfer=TransferMode.EXPLICIT_COPY if shared else TransferMode.UNIFIED)
    assert device.held_bytes() == (0 if shared else 3 * 256)
