"""Measured durations of steps by their size, which decide how many draft tokens pay."""

from __future__ import annotations

import statistics
from bisect import bisect
from collections import deque

_LAST = 9
"""Number of measurements that count."""


class StepCosts:
    """Medians of the seconds of steps, by number of rows: other programs may interrupt some. The first measurement of a
    size does not count: it compiles and records."""

    def __init__(self) -> None:
        self._last: dict[int, deque[float]] = {}
        self.measured: dict[int, float] = {}
        """The medians by number of rows."""

    def is_new(self, rows: int) -> bool:
        """Return True if there was no measurement of this size."""
        return rows not in self._last

    def update(self, rows: int, seconds: float) -> None:
        """Add a measurement."""
        last = self._last.get(rows)
        if last is None:
            self._last[rows] = deque(maxlen=_LAST)
            return
        last.append(seconds)
        self.measured[rows] = statistics.median(last)


def interpolated(points: dict[int, float], rows: int) -> float:
    """Return the seconds of a step of `rows` rows from those of other sizes: between two of them by a straight line,
    elsewhere those of the nearest. There must be a point."""
    if rows in points:
        return points[rows]
    sizes = sorted(points)
    place = bisect(sizes, rows)
    if place in (0, len(sizes)):
        return points[sizes[max(0, place - 1)]]
    below = sizes[place - 1]
    above = sizes[place]
    share = (rows - below) / (above - below)
    return points[below] + share * (points[above] - points[below])
