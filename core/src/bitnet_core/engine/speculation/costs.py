"""Measured durations of steps by their size, which decide how many draft tokens pay."""

from __future__ import annotations

_LAST = 8
"""Number of steps that a running mean covers."""


class StepCosts:
    """Running means of the seconds of steps, by number of rows. The first step of a size compiles and records, so it
    does not count."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._means: dict[int, float] = {}

    def update(self, rows: int, seconds: float) -> None:
        """Add a step."""
        count = self._counts.get(rows, 0)
        self._counts[rows] = count + 1
        if count:
            mean = self._means.get(rows, seconds)
            self._means[rows] = mean + (seconds - mean) / min(count, _LAST)

    @property
    def measured(self) -> dict[int, float]:
        """The means by number of rows."""
        return dict(self._means)


def interpolated(points: dict[int, float], rows: int) -> float:
    """Return the seconds of a step of `rows` rows from those of other sizes: between two of them by a straight line,
    elsewhere those of the nearest. There must be a point."""
    below = max((size for size in points if size <= rows), default=None)
    above = min((size for size in points if size >= rows), default=None)
    if below is None or above is None or below == above:
        nearest = above if below is None else below
        assert nearest is not None
        return points[nearest]
    share = (rows - below) / (above - below)
    return points[below] + share * (points[above] - points[below])
