"""Device buffers, and the copies of the ring that uploads go through."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bitnet_core.hal import MemoryKind
from bitnet_core.hal.staging import StagingRing

from bitnet_rocm.driver import driver

if TYPE_CHECKING:
    from bitnet_rocm.device import RocmDevice

STAGING = 16 << 20
"""Bytes of each of the two pinned slots: one is filled while the other is copied."""


@dataclass(eq=False, slots=True)
class RocmBuffer:
    """A range of memory. address is what kernels see."""

    address: int
    nbytes: int
    kind: MemoryKind
    host: int = 0  # host address of pinned memory
    registered: bool = False  # the host's own memory, lent to the device


class PinnedCopies:
    """Copies from two slots of pinned memory; a fence is an event."""

    def __init__(self, device: RocmDevice) -> None:
        self._device, api = device, driver()
        self.slots = [
            device.address(device.check(api.hipHostMalloc(STAGING, 0), "alloc", requested=STAGING)[0]) for _ in range(2)
        ]
        self._events = [device.check(api.hipEventCreate(), "create event")[0] for _ in range(2)]
        self._turn = 0

    def ring(self) -> StagingRing[RocmBuffer]:
        """The ring of these slots."""
        views = [memoryview((ctypes.c_char * STAGING).from_address(slot)).cast("B") for slot in self.slots]
        return StagingRing(views, self)

    def copy(self, slot: int, start: int, nbytes: int, buffer: RocmBuffer, offset: int) -> None:
        """Queue one."""
        api, device = driver(), self._device
        kind = api.hipMemcpyKind.hipMemcpyHostToDevice
        source = self.slots[slot] + start
        device.check(api.hipMemcpyAsync(buffer.address + offset, source, nbytes, kind, device.stream), "upload")

    def fence(self) -> Any:
        """One of two events in turn: a slot's is waited for before the slot is used again."""
        self._turn = 1 - self._turn
        self._device.check(driver().hipEventRecord(self._events[self._turn], self._device.stream), "upload")
        return self._events[self._turn]

    def wait(self, fence: Any) -> None:
        """Bounded, as all waits."""
        self._device.until(lambda: driver().hipEventQuery(fence), "upload")

    def close(self) -> None:
        """Free the pinned memory."""
        for event in self._events:
            driver().hipEventDestroy(event)
        for slot in self.slots:
            driver().hipHostFree(slot)
