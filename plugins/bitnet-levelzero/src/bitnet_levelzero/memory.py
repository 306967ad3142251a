"""Buffers, allocations, and the page-locked memory through which bytes come and go."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_size_t, c_void_p
from dataclasses import dataclass

from bitnet_core.hal.device import MemoryKind
from bitnet_core.hal.staging import StagingRing

from bitnet_levelzero.api import DeviceMemDesc, HostMemDesc
from bitnet_levelzero.driver import Context, load
from bitnet_levelzero.errors import check
from bitnet_levelzero.recording import Queue

GRANULE, ALIGNMENT = 16, 128
"""Bytes: buffers are multiples of the one and start at multiples of the other."""
STAGING_BYTES, SLOTS = 4 << 20, 3
"""Of each slot of page-locked memory; the first is for downloads."""


@dataclass(eq=False, slots=True)
class LevelZeroBuffer:
    """An allocation, or host memory that is not ours (`wrapped`)."""

    address: int
    nbytes: int
    kind: MemoryKind
    wrapped: bool = False


def allocated(context: Context, nbytes: int, kind: MemoryKind) -> int:
    """The address of memory of unknown content, with room up to the next granule."""
    size, pointer = c_size_t(-(-nbytes // GRANULE) * GRANULE), c_void_p()
    of_device, of_host = byref(DeviceMemDesc()), byref(HostMemDesc())
    here = (context.device, byref(pointer))
    name, arguments = {
        MemoryKind.DEVICE: ("zeMemAllocDevice", (of_device, size, ALIGNMENT, *here)),
        MemoryKind.HOST: ("zeMemAllocHost", (of_host, size, ALIGNMENT, byref(pointer))),
        MemoryKind.SHARED: ("zeMemAllocShared", (of_device, of_host, size, ALIGNMENT, *here)),
    }[kind]
    context.call(name, context.handle, *arguments, doing="alloc", requested=nbytes)
    return int(pointer.value or 0)


class Staging:
    """Slots of page-locked memory: two in a ring for uploads (bitnet_core.hal.staging.Copies), and one for downloads.

    seconds: that a wait may take.
    """

    def __init__(self, context: Context, queue: Queue, seconds: float) -> None:
        self._context, self._queue, self._seconds = context, queue, seconds
        self._slots = [allocated(context, STAGING_BYTES, MemoryKind.HOST) for _ in range(SLOTS)]
        views = [memoryview((ctypes.c_char * STAGING_BYTES).from_address(slot)).cast("B") for slot in self._slots]
        self._landing = views[0]
        self.ring: StagingRing[LevelZeroBuffer] = StagingRing(views[1:], self)

    def copy(self, slot: int, start: int, nbytes: int, buffer: LevelZeroBuffer, offset: int) -> None:
        """See Copies."""
        self._queue.commands.copy(buffer.address + offset, self._slots[1 + slot] + start, nbytes)

    def fence(self) -> c_void_p:
        """See Copies."""
        return self._queue.fence()

    def wait(self, fence: c_void_p) -> None:
        """See Copies."""
        check(load().zeFenceHostSynchronize(fence, int(self._seconds * 1e9)), "wait for an upload")

    def download(self, address: int, target: memoryview) -> None:
        """Wait for everything queued, then copy from device memory, a slot at a time."""
        for start in range(0, target.nbytes, STAGING_BYTES):
            part = target[start : start + STAGING_BYTES]
            self._queue.commands.copy(self._slots[0], address + start, part.nbytes)
            self._queue.wait(self._seconds)
            part[:] = self._landing[: part.nbytes]
        self.ring.drained()

    def close(self) -> None:
        """Nothing may be under way."""
        for slot in self._slots:
            self._context.call("zeMemFree", self._context.handle, slot)
