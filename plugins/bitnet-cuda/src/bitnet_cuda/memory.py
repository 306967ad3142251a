"""Device buffers and the pinned staging memory that uploads go through."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from bitnet_core.hal import MemoryKind

from bitnet_cuda.errors import check
from bitnet_cuda.query import driver

STAGING = 16 << 20
"""Bytes of each of the two pinned halves: one is filled while the other is copied."""


@dataclass(eq=False, slots=True)
class CudaBuffer:
    """A range of device or pinned memory. address is what kernels see."""

    address: int
    nbytes: int
    kind: MemoryKind
    host: int = 0  # host address of pinned and managed memory


class Staging:
    """Two pinned halves with an event each, used in turn: an upload returns when its bytes are in a half."""

    def __init__(self, stream: Any, device: str) -> None:
        self._stream, self._device = stream, device
        self._halves = [self._pinned() for _ in range(2)]
        self._events = [check(driver().cuEventCreate(2), "create event", device=device)[0] for _ in range(2)]
        self._turn, self._used = 0, 0

    def _pinned(self) -> int:
        pointer = check(driver().cuMemHostAlloc(STAGING, 0), "alloc", device=self._device, requested=STAGING)[0]
        return int(pointer)

    def upload(self, address: int, source: memoryview) -> None:
        """Queue a copy to the device; `source` may be reused on return."""
        done = 0
        while done < len(source):
            if self._used == STAGING:
                self._next_half()
            size = min(len(source) - done, STAGING - self._used)
            at = self._halves[self._turn] + self._used
            view = (ctypes.c_char * size).from_address(at)
            memoryview(view).cast("B")[:] = source[done : done + size]
            check(driver().cuMemcpyHtoDAsync(address + done, at, size, self._stream), "upload", device=self._device)
            self._used += size
            done += size

    def _next_half(self) -> None:
        check(driver().cuEventRecord(self._events[self._turn], self._stream), "upload", device=self._device)
        self._turn, self._used = 1 - self._turn, 0
        check(driver().cuEventSynchronize(self._events[self._turn]), "upload", device=self._device)

    def drained(self) -> None:
        """The stream is idle: all of the current half is free again."""
        self._used = 0

    def close(self) -> None:
        """Free the pinned memory."""
        for event in self._events:
            driver().cuEventDestroy(event)
        for half in self._halves:
            driver().cuMemFreeHost(half)
