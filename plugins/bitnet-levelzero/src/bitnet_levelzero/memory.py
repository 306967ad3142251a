"""Buffers, allocations, and the page-locked memory through which bytes come and go."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_size_t, c_void_p
from dataclasses import dataclass

from bitnet_core.hal.device import MemoryKind

from bitnet_levelzero.api import DeviceMemDesc, HostMemDesc, call, load
from bitnet_levelzero.errors import check

GRANULE, ALIGNMENT = 16, 128
"""Bytes: buffers are multiples of the one and start at multiples of the other."""
STAGING_BYTES = 4 << 20
"""Of each slot of page-locked memory."""


@dataclass(eq=False, slots=True)
class LevelZeroBuffer:
    """An allocation, or host memory that is not ours (`wrapped`)."""

    address: int
    nbytes: int
    kind: MemoryKind
    wrapped: bool = False


class Allocator:
    """The three verbs of one device: device, host and shared."""

    def __init__(self, context: c_void_p, device: c_void_p, name: str) -> None:
        self._context, self._device, self._name = context, device, name

    def alloc(self, nbytes: int, kind: MemoryKind, free: int = -1) -> int:
        """The address of memory of unknown content, with room up to the next granule."""
        size, pointer = c_size_t(-(-nbytes // GRANULE) * GRANULE), c_void_p()
        on_device, on_host, ze = byref(DeviceMemDesc()), byref(HostMemDesc()), load()
        if kind is MemoryKind.DEVICE:
            result = ze.zeMemAllocDevice(self._context, on_device, size, ALIGNMENT, self._device, byref(pointer))
        elif kind is MemoryKind.HOST:
            result = ze.zeMemAllocHost(self._context, on_host, size, ALIGNMENT, byref(pointer))
        else:
            where = (ALIGNMENT, self._device, byref(pointer))
            result = ze.zeMemAllocShared(self._context, on_device, on_host, size, *where)
        check(result, "alloc", device=self._name, requested=nbytes, free=free)
        return int(pointer.value or 0)

    def free(self, address: int) -> None:
        """Give it back at once, whatever still uses it."""
        call("zeMemFree", self._context, address, doing="free", device=self._name)


class Slot:
    """A piece of page-locked memory, as bytes."""

    def __init__(self, allocator: Allocator) -> None:
        self.address = allocator.alloc(STAGING_BYTES, MemoryKind.HOST)
        self.bytes = memoryview((ctypes.c_char * STAGING_BYTES).from_address(self.address)).cast("B")
