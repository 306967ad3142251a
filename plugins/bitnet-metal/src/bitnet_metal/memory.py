"""Buffers, shared with the host or private to the GPU."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
from bitnet_hal.plugin import MemoryKind
from bitnet_hal.rounding import round_up

from bitnet_metal.driver import Handle, module, pool

PAGE = 16 << 10  # of Apple silicon: memory that is lent to the GPU begins and ends at multiples of it
SMALL = 1 << 20  # bytes up to which DEVICE buffers are shared: the host reads some for every token; others are private


@dataclass(eq=False, slots=True)
class MetalBuffer:
    """offset: where it begins in its handle; host: its bytes, none if it is private; wrapped: they are the caller's."""

    handle: Handle
    nbytes: int
    kind: MemoryKind
    host: memoryview
    offset: int = 0
    wrapped: bool = False


def wrap(device: Handle, host: memoryview) -> MetalBuffer | None:
    """The pages that hold these bytes, lent without a copy; None where Metal or their alignment does not allow it."""
    address = int(np.frombuffer(host, np.uint8).ctypes.data)
    offset, mode = address % PAGE, module().MTLResourceStorageModeShared
    length = round_up(offset + host.nbytes, PAGE)
    if offset % 16:
        return None
    pages = (ctypes.c_char * length).from_address(address - offset)
    with pool():
        handle = device.newBufferWithBytesNoCopy_length_options_deallocator_(pages, length, mode, None)
    made = MetalBuffer(handle, host.nbytes, MemoryKind.SHARED, host, offset, wrapped=True)
    return None if handle is None else made
