"""Measurements that decide how many draft tokens pay: the acceptance of each request, and the seconds of steps."""

from __future__ import annotations

import math
import statistics
from bisect import bisect
from collections import deque

MAX_DRAFT = 7
"""Largest number of draft tokens of a request in one step."""

FIRST_DRAFT = 2
"""Number of draft tokens before one of the request's has been accepted."""

_KEPT = 0.95
"""Weight of earlier verifications against the next one."""

_PRIOR_WEIGHT = 2
"""Number of draft tokens that the prior counts for."""

_FIRST_PAUSE, _LAST_PAUSE = 16, 256
"""Tokens until a draft is tried again after drafts did not pay; doubled each time, until speculation is off."""

_MAX_WAIT = 32
"""Most tokens between two searches that found no draft."""

_LAST_STEPS = 9
"""Number of measurements of a size of steps that count."""


class Acceptance:
    """How many draft tokens of one request are right, and when the next ones are tried.

    most: number of draft tokens that may be tried next. paused: True if drafts did not pay; the next one is a probe.
    off: True if they are not tried any more. stopped: True after the first pause.
    """

    def __init__(self) -> None:
        self.most = FIRST_DRAFT
        self.paused = self.off = self.stopped = False
        self._right = self._tried = 0.0
        self._pause = _FIRST_PAUSE
        self._misses = 0
        self._next = 0  # length of the request's tokens at which a draft is tried

    def probability(self, prior: float) -> float:
        """Return a probability that a draft token is right if those before it are: one standard error above the
        estimate, because too few draft tokens would never correct an estimate that is too low."""
        tried = self._tried + _PRIOR_WEIGHT
        mean = (self._right + _PRIOR_WEIGHT * prior) / tried
        return min(1.0, mean + math.sqrt(mean * (1 - mean) / tried))

    def wait(self, tokens: int) -> float:
        """Return the number of tokens until the next try, of a request of `tokens` tokens; inf if there is none."""
        return math.inf if self.off else max(0, self._next - tokens)

    def verified(self, tokens: int, drafted: int, accepted: int) -> None:
        """Take a verification after which the request has `tokens` tokens."""
        self._right = _KEPT * self._right + accepted
        self._tried = _KEPT * self._tried + accepted + (accepted < drafted)
        self._misses = 0
        if accepted == drafted:
            self.most = min(2 * max(self.most, drafted), MAX_DRAFT)
            self._next = tokens
        elif self.paused:
            self.pause(tokens)

    def missed(self, tokens: int, *, quick: bool) -> None:
        """Take a search without a draft. quick: True if a token takes so little time that the next search waits, longer
        each time."""
        self._next = tokens + (min(1 << self._misses, _MAX_WAIT) if quick else 1)
        self._misses += 1

    def pause(self, tokens: int) -> None:
        """Try no drafts for some tokens, because they do not pay."""
        self.paused = True
        self.off = self._pause > _LAST_PAUSE
        self._next = tokens + self._pause
        self._pause *= 2
        self.most = FIRST_DRAFT

    def resume(self) -> None:
        """Take that drafts pay again."""
        self.paused = False
        self._pause = _FIRST_PAUSE


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
            self._last[rows] = deque(maxlen=_LAST_STEPS)
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
