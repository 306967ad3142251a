"""The context, and what is allocated in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bitnet_hal.plugin import Handle, HandleRegistry, MemoryKind, words_of

from bitnet_levelzero.api import given, load

GRANULE, ALIGNMENT = 16, 128
"""Bytes: buffers are multiples of the one and start at multiples of the other."""


class Context(HandleRegistry):
    """With its one device. ordinal: the group of the device's queues that compute."""

    def __init__(self, driver: Handle, device: Handle, ordinal: int) -> None:
        super().__init__(load(), "ze{}Create".format, "ze{}Destroy".format)
        self.device, self.ordinal = device, ordinal
        self.handle = self.create("Context", driver, {})


@dataclass(eq=False, slots=True)
class LevelZeroBuffer:
    """An allocation, or host memory that is not ours (`wrapped`)."""

    address: int
    nbytes: int
    kind: MemoryKind
    wrapped: bool = False


def allocated(context: Context, nbytes: int, kind: MemoryKind) -> int:
    """The address of memory of unknown content, with room up to the next granule."""
    plain: dict[str, Any] = {}
    size = words_of(nbytes, GRANULE), ALIGNMENT
    name, arguments = {
        MemoryKind.DEVICE: ("zeMemAllocDevice", (plain, *size, context.device)),
        MemoryKind.HOST: ("zeMemAllocHost", (plain, *size)),
        MemoryKind.SHARED: ("zeMemAllocShared", (plain, plain, *size, context.device)),
    }[kind]
    return int(given(name, context.handle, *arguments, doing="alloc", requested=nbytes))
