"""Allocation of small arrays in shared buffers: a buffer takes at least a page, and some drivers allow only 4,096."""

from __future__ import annotations

from collections.abc import Callable

from bitnet_hal.device import View
from bitnet_hal.rounding import ceil_div

SHARED = 1 << 20
"""Size of a shared buffer in bytes."""
SMALL = SHARED // 4
"""Maximum bytes of an array in a shared buffer; larger arrays get their own."""


class SharedBuffers:
    """An allocator of small views. alloc: allocates a buffer of a number of bytes. alignment: of views, in bytes."""

    def __init__(self, alloc: Callable[[int], View], alignment: int) -> None:
        self._alloc = alloc
        self._alignment = alignment
        self._left: View | None = None

    def view(self, nbytes: int) -> View:
        """Allocate a view of `nbytes` bytes."""
        if nbytes > SMALL:
            return self._alloc(nbytes)
        taken = ceil_div(nbytes, self._alignment) * self._alignment
        if self._left is None or self._left.nbytes < taken:
            self._left = self._alloc(SHARED)
        view = self._left.part(0, nbytes)
        self._left = self._left.part(taken, self._left.nbytes - taken)
        return view
