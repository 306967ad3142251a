"""Small arrays in buffers that they share: a driver gives each buffer a page or more, and some have as few as 4,096."""

from __future__ import annotations

from collections.abc import Callable

from bitnet_hal.device import View
from bitnet_hal.rounding import ceil_div

SHARED = 1 << 20
"""Bytes of a buffer that is shared."""
SMALL = SHARED // 4
"""Bytes of what may be in one; what is larger has a buffer of its own."""


class SharedBuffers:
    """alloc: makes a buffer of so many bytes. alignment: of views, in bytes."""

    def __init__(self, alloc: Callable[[int], View], alignment: int) -> None:
        self._alloc, self._alignment = alloc, alignment
        self._left: View | None = None

    def view(self, nbytes: int) -> View:
        """A place for so many bytes."""
        if nbytes > SMALL:
            return self._alloc(nbytes)
        taken = ceil_div(nbytes, self._alignment) * self._alignment
        if self._left is None or self._left.nbytes < taken:
            self._left = self._alloc(SHARED)
        view, self._left = self._left.part(0, nbytes), self._left.part(taken, self._left.nbytes - taken)
        return view
