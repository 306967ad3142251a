"""The context and the memory allocated in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bitnet_hal.plugin import Handle, HandleRegistry, MemoryKind, words_of

from bitnet_levelzero.api import given, load

GRANULE = 16
"""Buffers are multiples of this many bytes."""
ALIGNMENT = 128
"""Buffers begin at multiples of this many bytes."""


class Context(HandleRegistry):
    """A ze_context with one device. ordinal: the device's queue group that computes."""

    def __init__(self, driver: Handle, device: Handle, ordinal: int) -> None:
        super().__init__(load(), "ze{}Create".format, "ze{}Destroy".format)
        self.device = device
        self.ordinal = ordinal
        self.handle = self.create("Context", driver, {})


@dataclass(eq=False, slots=True)
class LevelZeroBuffer:
    """An allocation, or host memory of the caller (`wrapped`)."""

    address: int
    nbytes: int
    kind: MemoryKind
    wrapped: bool = False


def allocated(context: Context, nbytes: int, kind: MemoryKind) -> int:
    """Allocate memory of undefined content, up to the next granule, and return its address."""
    plain: dict[str, Any] = {}
    size = words_of(nbytes, GRANULE), ALIGNMENT
    name, arguments = {
        MemoryKind.DEVICE: ("zeMemAllocDevice", (plain, *size, context.device)),
        MemoryKind.HOST: ("zeMemAllocHost", (plain, *size)),
        MemoryKind.SHARED: ("zeMemAllocShared", (plain, plain, *size, context.device)),
    }[kind]
    return int(given(name, context.handle, *arguments, doing="alloc", requested=nbytes))
