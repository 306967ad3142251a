"""Buffers, shared with the host or private to the GPU."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
from bitnet_hal.plugin import MemoryKind
from bitnet_hal.rounding import round_up

from bitnet_metal.driver import Handle, module, pool

PAGE = 16 << 10
"""The bytes of a page of Apple silicon; wrapped memory starts and ends at multiples of it."""
SMALL = 1 << 20
"""The maximum bytes of a shared DEVICE buffer: the host reads some for every token. Larger ones are private."""


@dataclass(eq=False, slots=True)
class MetalBuffer:
    """An MTLBuffer.

    offset: of the first byte in the handle. host: its bytes, empty if it is private. wrapped: the bytes belong to the
    caller.
    """

    handle: Handle
    nbytes: int
    kind: MemoryKind
    host: memoryview
    offset: int = 0
    wrapped: bool = False


def wrap(device: Handle, host: memoryview) -> MetalBuffer | None:
    """Wrap the pages that contain these bytes without a copy. Returns None if Metal or the alignment forbids it."""
    address = int(np.frombuffer(host, np.uint8).ctypes.data)
    offset = address % PAGE
    length = round_up(offset + host.nbytes, PAGE)
    if offset % 16:
        return None
    pages = (ctypes.c_char * length).from_address(address - offset)
    mode = module().MTLResourceStorageModeShared
    with pool():
        handle = device.newBufferWithBytesNoCopy_length_options_deallocator_(pages, length, mode, None)
    if handle is None:
        return None
    return MetalBuffer(handle, host.nbytes, MemoryKind.SHARED, host, offset, wrapped=True)
