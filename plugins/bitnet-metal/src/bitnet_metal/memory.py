"""Buffers, shared with the host or private to the GPU."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
from bitnet_core.hal import MemoryKind

from bitnet_metal.driver import Handle, module, pool
from bitnet_metal.errors import no_room

PAGE = 16 << 10
"""Memory that is lent to the GPU begins and ends at multiples of this, a page of Apple silicon."""
SMALL = 1 << 20
"""DEVICE buffers up to these bytes are shared: the host reads some of them for every token. Larger ones (weights that
are copied, caches) are private."""


@dataclass(eq=False, slots=True)
class MetalBuffer:
    """offset: where it begins in its handle; host: its bytes, None where it is private; wrapped: they are the caller's."""

    handle: Handle
    nbytes: int
    kind: MemoryKind
    host: memoryview | None = None
    offset: int = 0
    wrapped: bool = False


def bytes_of(handle: Handle, offset: int, nbytes: int) -> memoryview:
    """A part of a shared buffer's memory."""
    return memoryview(handle.contents().as_buffer(offset + nbytes)).cast("B")[offset:]


class Memory:
    """Allocates on one device."""

    def __init__(self, device: Handle, name: str) -> None:
        self._device, self._name = device, name

    def free_bytes(self) -> int:
        """What is left of the working set that macOS recommends."""
        return max(0, int(self._device.recommendedMaxWorkingSetSize()) - int(self._device.currentAllocatedSize()))

    def new(self, nbytes: int, kind: MemoryKind) -> MetalBuffer:
        """With room to the next multiple of 16; zeroed where it is shared. OutOfMemoryError beyond the working set: from
        there on macOS would move memory out and in."""
        shared, handle = kind is not MemoryKind.DEVICE or nbytes <= SMALL, None
        mode = module().MTLResourceStorageModeShared if shared else module().MTLResourceStorageModePrivate
        if nbytes <= (free := self.free_bytes()):
            with pool():
                handle = self._device.newBufferWithLength_options_(-(-nbytes // 16) * 16, mode)
        if handle is None:
            raise no_room(nbytes, free, self._name)
        return MetalBuffer(handle, nbytes, kind, bytes_of(handle, 0, nbytes) if shared else None)

    def wrap(self, host: memoryview) -> MetalBuffer | None:
        """The pages that hold these bytes, lent without a copy; None where Metal or their alignment does not allow it."""
        address = int(np.frombuffer(host, np.uint8).ctypes.data)
        offset, mode = address % PAGE, module().MTLResourceStorageModeShared
        length = -(-(offset + host.nbytes) // PAGE) * PAGE
        if offset % 16 or length > int(self._device.maxBufferLength()):
            return None
        pages = (ctypes.c_char * length).from_address(address - offset)
        with pool():
            handle = self._device.newBufferWithBytesNoCopy_length_options_deallocator_(pages, length, mode, None)
        if handle is None:
            return None
        return MetalBuffer(handle, host.nbytes, MemoryKind.SHARED, bytes_of(handle, offset, host.nbytes), offset, True)
