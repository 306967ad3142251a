"""Measured durations of steps by their number of rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

_LAST_STEPS = 9
"""Number of latest measurements per step size that count."""


class StepCosts:
    """Mean seconds of steps by number of rows, without the longest of the latest steps, which another program may have
    delayed. The first measurement of a size is ignored, because it includes compilation and recording."""

    def __init__(self) -> None:
        self._last: dict[int, deque[float]] = {}
        self.measured: dict[int, float] = {}
        """The means by number of rows."""

    def is_new(self, rows: int) -> bool:
        """Return True if this size has not been measured."""
        return rows not in self._last

    def update(self, rows: int, seconds: float) -> None:
        """Add a measurement."""
        last = self._last.get(rows)
        if last is None:
            self._last[rows] = deque(maxlen=_LAST_STEPS)
            return
        last.append(seconds)
        self.measured[rows] = (sum(last) - max(last)) / (len(last) - 1) if len(last) > 1 else seconds


def interpolated(points: Mapping[int, float], rows: Sequence[int]) -> list[float]:
    """Return the seconds of steps of these numbers of rows by linear interpolation, outside of `points` those of the
    nearest point. There must be at least one point."""
    sizes = sorted(points)
    seconds: list[float] = np.interp(rows, sizes, [points[size] for size in sizes]).tolist()
    return seconds
