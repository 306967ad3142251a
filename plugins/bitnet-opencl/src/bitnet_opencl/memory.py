"""Buffers, and uploads to devices with memory of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyopencl as cl
from bitnet_core.hal.device import MemoryKind
from bitnet_core.hal.staging import StagingRing

STAGING_BYTES = 4 << 20
"""Of each of the two pinned buffers."""


@dataclass(eq=False, slots=True)
class OpenCLBuffer:
    """A cl_mem."""

    handle: cl.Buffer
    nbytes: int
    kind: MemoryKind


class PinnedSlots:
    """Two pinned buffers, mapped, and copies from them (bitnet_core.hal.staging.Copies).

    wait: until an event is reached, for a bounded time.
    """

    def __init__(self, queue: cl.CommandQueue, context: cl.Context, wait: Callable[[cl.Event], None]) -> None:
        self._queue, self.wait = queue, wait
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.ALLOC_HOST_PTR
        self._buffers = [cl.Buffer(context, flags, STAGING_BYTES) for _ in range(2)]
        self._memory = [self._mapped(buffer) for buffer in self._buffers]
        self._copies: list[cl.Event] = []  # which wait for themselves when they are dropped
        self.ring: StagingRing[OpenCLBuffer] = StagingRing([memory.data for memory in self._memory], self)

    def _mapped(self, buffer: cl.Buffer) -> npt.NDArray[np.uint8]:
        shape, dtype = (STAGING_BYTES,), np.dtype(np.uint8)
        memory, _ = cl.enqueue_map_buffer(self._queue, buffer, cl.map_flags.WRITE, 0, shape, dtype, is_blocking=True)
        return np.asarray(memory)

    def copy(self, slot: int, start: int, nbytes: int, buffer: OpenCLBuffer, offset: int) -> None:
        """See Copies."""
        part = self._memory[slot][start : start + nbytes]
        self._copies.append(cl.enqueue_copy(self._queue, buffer.handle, part, dst_offset=offset, is_blocking=False))
        self._queue.flush()

    def fence(self) -> cl.Event:
        """See Copies."""
        return cl.enqueue_marker(self._queue)

    def drained(self) -> None:
        """The queue is empty."""
        self._copies.clear()
        self.ring.drained()

    def close(self) -> None:
        """Give the pinned memory back."""
        for memory, buffer in zip(self._memory, self._buffers, strict=True):
            memory.base.release(self._queue)  # type: ignore[union-attr]  # a cl.MemoryMap
            buffer.release()
