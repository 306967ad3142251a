"""Uploads through page-locked host memory: the host fills one slot while the device copies from another."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from bitnet_hal.rounding import ceil_div, round_up

B_contra = TypeVar("B_contra", contravariant=True)
B = TypeVar("B")

_ALIGNMENT = 64
"""Copies start at multiples of this many bytes in a slot; some copy engines are slow at other offsets."""
_THREADS = min(4, os.cpu_count() or 1)
"""Threads that fill a slot: a single one reads a mapped file at a tenth of the speed of a GPU's bus."""
_LEAST = 8 << 20
"""Copies smaller than this use one thread; dispatching to more costs as much as the copy."""


class Copies(Protocol[B_contra]):
    """The operations of a plugin's queue that the ring needs."""

    def copy(self, slot: int, start: int, nbytes: int, buffer: B_contra, offset: int) -> None:
        """Queue and submit a copy of `nbytes` from byte `start` of a slot to `offset` of `buffer`."""

    def fence(self) -> Any:
        """Return a fence that is reached when all copies queued so far are done."""

    def wait(self, fence: Any) -> None:
        """Wait for a fence."""


class StagingRing(Generic[B]):
    """Slots of equal size, used in turn. An upload returns once its bytes are in slots, before the device copied them.

    slots: two or more memories that the device copies from. The caller frees them after everything queued has finished.
    """

    def __init__(self, slots: Sequence[memoryview], copies: Copies[B]) -> None:
        self._slots = [np.frombuffer(slot, np.uint8) for slot in slots]
        self._copies = copies
        self._fences: list[Any] = [None] * len(slots)
        self._turn = self._used = 0
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="bitnet-staging")  # threads start at first use

    def upload(self, buffer: B, offset: int, source: memoryview) -> None:
        """Queue copies of `source`, one-dimensional bytes, which may be reused on return."""
        data = np.frombuffer(source, np.uint8)  # numpy copies without the GIL
        done = 0
        while done < len(data):
            slot = self._slots[self._turn]
            if self._used >= len(slot):
                self._next()
                continue
            size = min(len(data) - done, len(slot) - self._used)
            self._fill(slot[self._used : self._used + size], data[done : done + size])
            self._copies.copy(self._turn, self._used, size, buffer, offset + done)
            self._used += round_up(size, _ALIGNMENT)
            done += size

    def drained(self) -> None:
        """Mark all slots as free. Call it after each wait for the queue."""
        self._fences = [None] * len(self._slots)
        self._used = 0

    def _fill(self, slot: npt.NDArray[np.uint8], data: npt.NDArray[np.uint8]) -> None:
        if len(data) < _LEAST or _THREADS < 2:
            slot[:] = data
            return
        size = ceil_div(len(data), _THREADS)
        starts = range(0, len(data), size)
        list(self._threads.map(lambda at: np.copyto(slot[at : at + size], data[at : at + size]), starts))

    def _next(self) -> None:
        self._fences[self._turn] = self._copies.fence()
        self._turn = (self._turn + 1) % len(self._slots)
        self._used = 0
        fence, self._fences[self._turn] = self._fences[self._turn], None
        if fence is not None:
            self._copies.wait(fence)
