"""Copies between host and device through one persistently mapped staging ring."""

from __future__ import annotations

from bitnet_core.hal import MemoryKind

from bitnet_vulkan.binding import WHOLE_SIZE, lib, make
from bitnet_vulkan.hazards import Range
from bitnet_vulkan.memory import Allocator, BufferUsage, VulkanBuffer
from bitnet_vulkan.queue import Queue

RING = 32 << 20
"""Bytes of the upload ring: large enough to keep a copy engine busy, small beside any model."""
PIECE = 8 << 20
"""Bytes that a copy engine gets at a time, so that it works while the host fills the next piece."""
LARGE = 1 << 20
"""Bytes from which an upload goes through the copy engine: below, changing queues costs more than it saves."""


class Transfers:
    """Uploads go through the ring without waiting until it is full; downloads wait.

    copies: the queue of a copy engine, if the device has one.
    """

    def __init__(self, allocator: Allocator, queue: Queue, copies: Queue | None) -> None:
        self._queue, self._copies = queue, copies
        self._ring = allocator.allocate(RING, MemoryKind.HOST, BufferUsage.STAGING)
        self._back = allocator.allocate(RING, MemoryKind.HOST, BufferUsage.STAGING | BufferUsage.CACHED)
        self._ring_bytes, self._back_bytes = allocator.map(self._ring), allocator.map(self._back)
        self._used = 0

    def upload(self, buffer: VulkanBuffer, offset: int, source: memoryview) -> None:
        """Copy `source` to `offset` of `buffer`; it may be reused on return."""
        queue = self._queue
        if self._copies is not None and len(source) >= LARGE:
            queue.wait()  # what still uses the buffer
            queue = self._copies
        done = 0
        while done < len(source):
            if self._used >= RING:
                self._queue.wait()
                queue.wait()
                self._used = 0
            size = min(len(source) - done, RING - self._used, PIECE)
            self._ring_bytes[self._used : self._used + size] = source[done : done + size]
            self._copy(queue, self._ring, self._used, buffer, offset + done, size)
            if queue is self._copies:
                queue.flush()
            self._used = -(-(self._used + size) // 64) * 64
            done += size

    def download(self, buffer: VulkanBuffer, offset: int, target: memoryview) -> None:
        """Copy to `target`, waiting until it is there."""
        for start in range(0, len(target), RING):
            size = min(RING, len(target) - start)
            self.copy(buffer, offset + start, self._back, 0, size)
            self._queue.wait()
            self._used = 0
            target[start : start + size] = self._back_bytes[:size]

    def copy(self, source: VulkanBuffer, source_at: int, target: VulkanBuffer, target_at: int, nbytes: int) -> None:
        """Queue a device-side copy."""
        self._copy(self._queue, source, source_at, target, target_at, nbytes)

    @staticmethod
    def _copy(
        queue: Queue, source: VulkanBuffer, source_at: int, target: VulkanBuffer, target_at: int, nbytes: int
    ) -> None:
        commands = queue.commands()
        reads: list[Range] = [(id(source), source_at, source_at + nbytes)]
        writes: list[Range] = [(id(target), target_at, target_at + nbytes)]
        commands.hazards.before(commands.handle, reads, writes, copy=True)
        region = make("VkBufferCopy", srcOffset=source_at, dstOffset=target_at, size=nbytes)
        lib().vkCmdCopyBuffer(commands.handle, source.handle, target.handle, 1, region)

    def zero(self, buffer: VulkanBuffer) -> None:
        """Queue a fill with zeros."""
        commands = self._queue.commands()
        commands.hazards.before(commands.handle, [], [(id(buffer), 0, buffer.nbytes)], copy=True)
        lib().vkCmdFillBuffer(commands.handle, buffer.handle, 0, WHOLE_SIZE, 0)

    def close(self, allocator: Allocator) -> None:
        """Release the staging memory; the device must be idle."""
        self._ring_bytes.release()
        self._back_bytes.release()
        allocator.release(self._ring)
        allocator.release(self._back)
