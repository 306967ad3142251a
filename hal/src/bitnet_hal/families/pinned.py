"""Page-locked memory of a `StreamDevice` in two slots: the host uses one while the other is copied."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bitnet_hal.families.stream import StreamBuffer, StreamDevice


class PinnedSlots:
    """Two slots of nbytes each with an event each. Copies are queued on the device's stream.

    operation: the name in errors. For uploads it implements staging.Copies, for downloads `read_async`.
    """

    def __init__(self, device: StreamDevice, nbytes: int, operation: str) -> None:
        self._device = device
        self._operation = operation
        self.slots = [device.pinned(nbytes) for _ in range(2)]
        self._events = [device.check(device.calls.create_event(), "create event")[0] for _ in range(2)]
        self._turn = 0

    def copy(self, slot: int, start: int, nbytes: int, buffer: StreamBuffer, offset: int) -> None:
        """Queue a copy from byte `start` of a slot to `offset` of a buffer."""
        device = self._device
        to = buffer.address + offset
        source = self.slots[slot] + start
        device.check(device.calls.upload(to, source, nbytes, device.stream), self._operation)

    def read_async(self, address: int, nbytes: int) -> Callable[[memoryview], None]:
        """Queue a download to the next slot and return the function that waits for it (`Device.read_async`)."""
        device = self._device
        slot = self.slots[1 - self._turn]
        device.call("MemcpyDtoHAsync", self._operation, slot, address, nbytes, device.stream)
        fence = self.fence()

        def read(target: memoryview) -> None:
            device.select()
            self.wait(fence)
            target[:] = host_view(slot, nbytes)

        return read

    def fence(self) -> Any:
        """Record and return an event behind all queued work. A slot is reused only after its event."""
        self._turn = 1 - self._turn
        self._device.call("EventRecord", self._operation, self._events[self._turn], self._device.stream)
        return self._events[self._turn]

    def wait(self, fence: Any) -> None:
        """Wait for an event. Raises GpuTimeoutError after the device's timeout."""
        self._device.until("EventQuery", fence, self._operation)

    def close(self) -> None:
        """Destroy the events and free the page-locked memory."""
        for event in self._events:
            getattr(self._device.api, f"{self._device.prefix}EventDestroy")(event)
        for slot in self.slots:
            self._device.calls.free_host(slot)


def host_view(address: int, nbytes: int) -> memoryview:
    """Return a view of `nbytes` at an address of this process."""
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")
