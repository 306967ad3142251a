"""The context, and what is allocated in it."""

from __future__ import annotations

from ctypes import byref, c_size_t, c_void_p
from dataclasses import dataclass
from typing import NamedTuple

from bitnet_core.hal.device import MemoryKind

from bitnet_levelzero.api import DeviceMemDesc, HostMemDesc, call

GRANULE, ALIGNMENT = 16, 128
"""Bytes: buffers are multiples of the one and start at multiples of the other."""


class Context(NamedTuple):
    """With its one device. ordinal: the group of the device's queues that compute."""

    handle: c_void_p
    device: c_void_p
    ordinal: int


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
    call(name, context.handle, *arguments, doing="alloc", requested=nbytes)
    return int(pointer.value or 0)
