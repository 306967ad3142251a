"""Uploads through page-locked host memory: while the device copies from one slot, the host fills another."""

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
"""Copies start at multiples of this within a slot; some engines are slow at others."""
_THREADS = min(4, os.cpu_count() or 1)
"""Fill a slot together: one alone reads a mapped file at a tenth of what a GPU's bus takes."""
_LEAST = 8 << 20
"""Bytes that are worth more than one thread: fewer are copied as soon as threads are told of them."""


class Copies(Protocol[B_contra]):
    """What a plugin's queue does for the ring."""

    def copy(self, slot: int, start: int, nbytes: int, buffer: B_contra, offset: int) -> None:
        """Queue a copy of bytes `start`.. of a slot to `offset` of `buffer`, and see that the device begins."""

    def fence(self) -> Any:
        """Something that is reached when all that `copy` has queued so far is done."""

    def wait(self, fence: Any) -> None:
        """Until it is reached."""


class StagingRing(Generic[B]):
    """Slots of equal size, used in turn. An upload returns when its bytes are in slots, not when they are copied.

    slots: two or more, each the bytes of memory that the device copies from. Whoever made them frees them, after
    everything queued has finished.
    """

    def __init__(self, slots: Sequence[memoryview], copies: Copies[B]) -> None:
        self._slots, self._copies = [np.frombuffer(slot, np.uint8) for slot in slots], copies
        self._fences: list[Any] = [None] * len(slots)
        self._turn = self._used = 0
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="bitnet-staging")  # started when first needed

    def upload(self, buffer: B, offset: int, source: memoryview) -> None:
        """Queue copies of `source`, bytes in one dimension, which may be reused on return."""
        data, done = np.frombuffer(source, np.uint8), 0  # whose copies leave other threads their turn
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
        """Everything queued has finished: all slots are free again. To be called after each wait for the queue."""
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
        self._turn, self._used = (self._turn + 1) % len(self._slots), 0
        fence, self._fences[self._turn] = self._fences[self._turn], None
        if fence is not None:
            self._copies.wait(fence)
