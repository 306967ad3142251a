"""Two slots of page-locked memory of a `StreamDevice`: one is at the host's disposal while the other is copied."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bitnet_hal.families.stream import StreamBuffer, StreamDevice


class PinnedSlots:
    """Slots of nbytes each. Copies are queued on the device's stream; a fence is one of two events, in turn.

    operation: what errors name. For uploads see staging.Copies; for downloads there is `reading`.
    """

    def __init__(self, device: StreamDevice, nbytes: int, operation: str) -> None:
        self._device, self._operation = device, operation
        self.slots = [device.pinned(nbytes) for _ in range(2)]
        self._events = [device.check(device.calls.create_event(), "create event")[0] for _ in range(2)]
        self._turn = 0

    def copy(self, slot: int, start: int, nbytes: int, buffer: StreamBuffer, offset: int) -> None:
        """Queue an upload from a slot."""
        device = self._device
        to, source = buffer.address + offset, self.slots[slot] + start
        device.check(device.calls.upload(to, source, nbytes, device.stream), self._operation)

    def read_async(self, address: int, nbytes: int) -> Callable[[memoryview], None]:
        """Queue a download to the slot whose turn it is; see Device.read_async."""
        device, slot = self._device, self.slots[1 - self._turn]
        device.call("MemcpyDtoHAsync", self._operation, slot, address, nbytes, device.stream)
        fence = self.fence()

        def read(target: memoryview) -> None:
            device.select()
            self.wait(fence)
            target[:] = host_view(slot, nbytes)

        return read

    def fence(self) -> Any:
        """An event behind what is queued: a slot's is waited for before the slot is used again."""
        self._turn = 1 - self._turn
        self._device.call("EventRecord", self._operation, self._events[self._turn], self._device.stream)
        return self._events[self._turn]

    def wait(self, fence: Any) -> None:
        """Bounded, as all waits."""
        self._device.until("EventQuery", fence, self._operation)

    def close(self) -> None:
        """Free the page-locked memory."""
        for event in self._events:
            getattr(self._device.api, f"{self._device.prefix}EventDestroy")(event)
        for slot in self.slots:
            self._device.calls.free_host(slot)


def host_view(address: int, nbytes: int) -> memoryview:
    """The bytes at an address of this process."""
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")
