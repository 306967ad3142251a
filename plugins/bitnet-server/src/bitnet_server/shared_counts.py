"""Numbers of a served model that its HTTP processes share."""

from __future__ import annotations

import mmap
import os
import sys

ROWS = 16
"""Most HTTP processes of a server, the first one included."""

_FIELDS = 3
_BYTES = ROWS * _FIELDS * 8


class SharedCounts:
    """Texts under way, tokens made and requests taken, of each HTTP process: each writes a row of its own.

    active, tokens and requests are the sums of all rows. descriptor: of the memory, for another process; -1 where
    processes cannot share it.
    """

    def __init__(self, descriptor: int | None = None, row: int = 0) -> None:
        if descriptor is None:
            descriptor = -1
            if sys.platform == "linux":
                descriptor = os.memfd_create("bitnet")
                os.ftruncate(descriptor, _BYTES)
        self.descriptor = descriptor
        self._memory = memoryview(mmap.mmap(descriptor, _BYTES)).cast("q")
        self._row = row * _FIELDS

    def close(self) -> None:
        """Close the descriptor; the numbers stay."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def add(self, *, active: int = 0, tokens: int = 0, requests: int = 0) -> None:
        """Add to the row of this process."""
        for field, count in enumerate((active, tokens, requests)):
            self._memory[self._row + field] += count

    def clear_active(self, row: int) -> None:
        """Record that a process has ended, and its requests with it."""
        self._memory[row * _FIELDS] = 0

    @property
    def active(self) -> int:
        """Number of running and waiting requests."""
        return sum(self._memory[0::_FIELDS])

    @property
    def active_elsewhere(self) -> int:
        """Number of running and waiting requests in other processes."""
        return self.active - self._memory[self._row]

    @property
    def tokens(self) -> int:
        """Number of generated tokens."""
        return sum(self._memory[1::_FIELDS])

    @property
    def requests(self) -> int:
        """Number of requests taken."""
        return sum(self._memory[2::_FIELDS])
