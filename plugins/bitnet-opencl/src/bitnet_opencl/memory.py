"""Buffers, shared virtual memory, and the ways bytes get to a device."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntFlag
from typing import Any

import numpy as np
import numpy.typing as npt
import pyopencl as cl
from bitnet_core.hal.device import MemoryKind, TransferMode

USM_THRESHOLD = 65536
"""Bytes: smaller transfers go straight through the driver, larger ones to a discrete device through pinned memory."""
STAGING_BYTES = 4 << 20
"""Bytes of each of the two pinned staging buffers."""


class SvmCapabilities(IntFlag):
    """CL_DEVICE_SVM_CAPABILITIES, bit for bit."""

    COARSE_GRAIN_BUFFER = 1
    FINE_GRAIN_BUFFER = 2
    FINE_GRAIN_SYSTEM = 4
    ATOMICS = 8


class UsmSupport(Enum):
    """The best kind of shared memory that a device reports."""

    FINE_GRAIN_SYSTEM = "fine-grain system"
    FINE_GRAIN_BUFFER = "fine-grain buffer"
    COARSE_GRAIN_BUFFER = "coarse-grain buffer"
    NONE = "none"

    @property
    def transfer(self) -> TransferMode:
        """Fine-grained memory is used in place; everything else is copied."""
        if self in (UsmSupport.FINE_GRAIN_SYSTEM, UsmSupport.FINE_GRAIN_BUFFER):
            return TransferMode.UNIFIED
        return TransferMode.EXPLICIT_COPY


def detect_usm_capabilities(raw: int) -> UsmSupport:
    """The best kind among the bits of CL_DEVICE_SVM_CAPABILITIES (0 where the device has no such query)."""
    capabilities = SvmCapabilities(raw)
    if SvmCapabilities.FINE_GRAIN_SYSTEM in capabilities:
        return UsmSupport.FINE_GRAIN_SYSTEM
    if SvmCapabilities.FINE_GRAIN_BUFFER in capabilities:
        return UsmSupport.FINE_GRAIN_BUFFER
    if SvmCapabilities.COARSE_GRAIN_BUFFER in capabilities:
        return UsmSupport.COARSE_GRAIN_BUFFER
    return UsmSupport.NONE


@dataclass(eq=False, slots=True)
class OpenCLBuffer:
    """A cl_mem; `handle` is None once freed."""

    handle: cl.Buffer | None
    nbytes: int
    kind: MemoryKind


@dataclass(frozen=True, slots=True)
class _Pinned:
    """Page-locked memory, mapped."""

    buffer: cl.Buffer
    memory: npt.NDArray[np.uint8]


class DirectPath:
    """Uploads through the driver: right where device memory is host memory, and for small pieces."""

    def __init__(self, queue: cl.CommandQueue) -> None:
        self._queue = queue

    def upload(self, handle: cl.Buffer, offset: int, src: memoryview) -> None:
        """Copy and wait until `src` may be reused."""
        host = np.frombuffer(src, dtype=np.uint8)
        cl.enqueue_copy(self._queue, handle, host, dst_offset=offset, is_blocking=True)

    def close(self) -> None:
        """Nothing is held."""


class StagedPath(DirectPath):
    """Large uploads in pieces through two pinned buffers, so that one is filled while the other is on its way."""

    def __init__(self, queue: cl.CommandQueue, context: cl.Context) -> None:
        super().__init__(queue)
        self._context = context
        self._staging: list[_Pinned] = []

    def upload(self, handle: cl.Buffer, offset: int, src: memoryview) -> None:
        """Copy and wait until `src` may be reused."""
        if src.nbytes <= USM_THRESHOLD:
            super().upload(handle, offset, src)
            return
        if not self._staging:
            self._staging = [self._pinned() for _ in range(2)]
        host = np.frombuffer(src, dtype=np.uint8)
        sent: list[cl.Event | None] = [None, None]
        for turn, start in enumerate(range(0, host.nbytes, STAGING_BYTES)):
            pinned = self._staging[turn % 2].memory
            event = sent[turn % 2]
            if event is not None:
                event.wait()
            piece = host[start : start + STAGING_BYTES]
            pinned[: piece.nbytes] = piece
            sent[turn % 2] = cl.enqueue_copy(
                self._queue, handle, pinned[: piece.nbytes], dst_offset=offset + start, is_blocking=False
            )
            self._queue.flush()
        for event in sent:
            if event is not None:
                event.wait()

    def _pinned(self) -> _Pinned:
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.ALLOC_HOST_PTR
        buffer = cl.Buffer(self._context, flags, STAGING_BYTES)
        memory, _ = cl.enqueue_map_buffer(
            self._queue, buffer, cl.map_flags.WRITE, 0, (STAGING_BYTES,), np.dtype(np.uint8), is_blocking=True
        )
        return _Pinned(buffer, memory)

    def close(self) -> None:
        """Give the pinned memory back."""
        for pinned in self._staging:
            mapped: Any = pinned.memory.base  # a cl.MemoryMap
            mapped.release(self._queue)
            pinned.buffer.release()
        self._staging.clear()


class DataPath:
    """The upload path of a device."""

    @staticmethod
    def select(mode: TransferMode, queue: cl.CommandQueue, context: cl.Context) -> DirectPath:
        """Straight in where memory is shared, through pinned staging elsewhere."""
        return DirectPath(queue) if mode is TransferMode.UNIFIED else StagedPath(queue, context)
