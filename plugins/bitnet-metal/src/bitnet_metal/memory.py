"""Buffers, shared with the host or private to the GPU, and how bytes get into and out of them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from bitnet_core.hal import MemoryKind
from bitnet_core.hal.staging import StagingRing

from bitnet_metal.driver import Handle, module, pool
from bitnet_metal.errors import no_room
from bitnet_metal.recording import Queue

PAGE = 16 << 10
"""Memory that is lent to the GPU begins and ends at multiples of this, a page of Apple silicon."""
SMALL = 1 << 20
"""DEVICE buffers up to these bytes are shared: the host reads some of them for every token. Larger ones (weights that
are copied, caches) are private."""
SLOT, SLOTS = 4 << 20, 2
"""Shared memory through which private buffers are reached."""


@dataclass(eq=False, slots=True)
class MetalBuffer:
    """A buffer with room to the next multiple of 16. offset: where it begins in its handle; host: its bytes, None where
    it is private."""

    handle: Handle
    nbytes: int
    kind: MemoryKind
    host: memoryview | None
    offset: int = 0
    wrapped: bool = False


def bytes_of(handle: Handle, offset: int, nbytes: int) -> memoryview:
    """A part of a shared buffer's memory."""
    view: memoryview = memoryview(handle.contents().as_buffer(offset + nbytes)).cast("B")
    return view[offset:]


class Copies:
    """What the staging ring asks of the queue."""

    def __init__(self, queue: Queue, slots: Sequence[Handle]) -> None:
        self._queue, self._slots = queue, slots

    def copy(self, slot: int, start: int, nbytes: int, buffer: MetalBuffer, offset: int) -> None:
        """Queue a copy out of a slot, and let the GPU begin."""
        self._queue.move(self._slots[slot], start, buffer.handle, offset, nbytes)
        self._queue.submit()

    def fence(self) -> Handle:
        """The command buffer after which all that was queued is done."""
        return self._queue.running[-1]

    def wait(self, fence: Handle) -> None:
        """Until it is done."""
        self._queue.reach(fence)


class Memory:
    """Allocates and moves bytes on one device."""

    def __init__(self, device: Handle, name: str, queue: Queue) -> None:
        self._device, self._name, self._queue = device, name, queue
        metal = module()
        self._shared, self._private = metal.MTLResourceStorageModeShared, metal.MTLResourceStorageModePrivate
        self._slots = [self._new(SLOT, shared=True) for _ in range(SLOTS)]
        self._views = [bytes_of(slot, 0, SLOT) for slot in self._slots]
        self._ring = StagingRing[MetalBuffer](self._views, Copies(queue, self._slots))

    def free_bytes(self) -> int:
        """What is left of the working set that macOS recommends."""
        return max(0, int(self._device.recommendedMaxWorkingSetSize()) - int(self._device.currentAllocatedSize()))

    def alloc(self, nbytes: int, kind: MemoryKind) -> MetalBuffer:
        """Zeroed. OutOfMemoryError beyond the working set: from there on macOS would move memory out and in."""
        shared, rounded = kind is not MemoryKind.DEVICE or nbytes <= SMALL, -(-nbytes // 16) * 16
        handle = self._new(rounded, shared=shared)
        if not shared:
            self._queue.blit().fillBuffer_range_value_(handle, (0, rounded), 0)
        return MetalBuffer(handle, nbytes, kind, bytes_of(handle, 0, nbytes) if shared else None)

    def _new(self, nbytes: int, *, shared: bool) -> Handle:
        handle = None
        if nbytes <= (free := self.free_bytes()):
            with pool():
                handle = self._device.newBufferWithLength_options_(nbytes, self._shared if shared else self._private)
        if handle is None:
            raise no_room(nbytes, free, self._name)
        return handle

    def wrap(self, host: memoryview) -> MetalBuffer | None:
        """The pages that hold these bytes, lent without a copy; None where Metal or the alignment does not allow it."""
        address = int(np.frombuffer(host, np.uint8).ctypes.data)
        offset = address % PAGE
        length = -(-(offset + host.nbytes) // PAGE) * PAGE
        if offset % 16 or length > int(self._device.maxBufferLength()):
            return None
        pages = (ctypes.c_char * length).from_address(address - offset)
        with pool():
            handle = self._device.newBufferWithBytesNoCopy_length_options_deallocator_(pages, length, self._shared, None)
        if handle is None:
            return None
        return MetalBuffer(
            handle, host.nbytes, MemoryKind.SHARED, bytes_of(handle, offset, host.nbytes), offset, wrapped=True
        )

    def upload(self, buffer: MetalBuffer, offset: int, source: memoryview) -> None:
        """Shared memory is written when the GPU is done with it; private memory through the ring, in whole words."""
        if buffer.host is not None:
            self._queue.wait()
            buffer.host[offset : offset + len(source)] = source
            return
        words = len(source) // 4 * 4
        self._ring.upload(buffer, offset, source[:words])
        if words < len(source):
            last = bytearray(4)
            self.download(buffer, offset + words, memoryview(last))
            last[: len(source) - words] = source[words:]
            self._ring.upload(buffer, offset + words, memoryview(last))

    def download(self, buffer: MetalBuffer, offset: int, target: memoryview) -> None:
        """Waits for what is queued; private memory comes through a slot, a part at a time."""
        self.wait()
        if buffer.host is not None:
            target[:] = buffer.host[offset : offset + len(target)]
            return
        for start in range(0, len(target), SLOT):
            size = min(SLOT, len(target) - start)
            self._queue.move(buffer.handle, offset + start, self._slots[0], 0, -(-size // 4) * 4)
            self.wait()
            target[start : start + size] = self._views[0][:size]

    def copy(self, source: MetalBuffer, at: int, target: MetalBuffer, to: int, nbytes: int) -> None:
        """Whole words on the GPU, bytes of a last word by the host."""
        words = nbytes // 4 * 4
        if words:
            self._queue.move(source.handle, source.offset + at, target.handle, target.offset + to, words)
        if words < nbytes:
            last = bytearray(nbytes - words)
            self.download(source, at + words, memoryview(last))
            self.upload(target, to + words, memoryview(last))

    def wait(self) -> None:
        """Until the queue is empty, and with it the ring."""
        self._queue.wait()
        self._ring.drained()
