"""Measurements that decide about draft tokens: the share of each request's that is accepted, and durations of steps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

MAX_DRAFT = 7
"""Largest number of draft tokens of a request in one step."""

FIRST_DRAFT = 2
"""Number of draft tokens of a request while nothing is known about the acceptance of any, and after a pause."""

_KEPT_OF_REQUEST = 0.95
"""Weight of earlier verifications of a request against the next one."""

_PRIOR_ALONE, _PRIOR_AMONG = 2, 8
"""Numbers of draft tokens that the prior counts for, which is the acceptance of all requests: with one request, and
with several. Requests with different drafts by chance would end at different times, so that later steps have few."""

_FIRST_PAUSE, _LAST_PAUSE = 16, 256
"""Tokens until a draft is tried again after drafts did not pay; doubled each time. After the last, speculation is off
for the request."""

_MAX_WAIT = 32
"""Maximum tokens between two searches that find no draft."""

_LAST_STEPS = 9
"""Number of latest measurements per step size that count."""

_OLD_STEPS = 16
"""Number of other steps after which the measurements of a size are old."""

_HOPED_GAIN, _HOPED_ONCE, _MOST_HOPED = 0.01, 0.3, 0.3
"""Shares of the seconds by which a step may have become shorter in _OLD_STEPS steps, and may be shorter than its only
measurement, and the largest such share. Trying a size that takes one percent longer than the best each time costs that
percent every _OLD_STEPS steps."""


class Acceptance:
    """The share of a request's draft tokens that is accepted, and the position at which the next ones are tried.

    most: maximum draft tokens of the next try. next: number of the request's tokens from which it takes place, inf if
    drafts are not tried any more. paused: True if drafts did not pay; the next one is a probe. stopped: True after the
    first pause.
    """

    def __init__(self, most: int = FIRST_DRAFT) -> None:
        self.most = most
        self.next = 0.0
        self.paused = self.stopped = False
        self._right = self._tried = 0.0
        self._pause = _FIRST_PAUSE
        self._misses = 0

    def probability(self, prior: float, *, alone: bool) -> float:
        """Return the probability that a draft token is accepted if those before it are. alone: there is no other
        request, and the result is one standard error above the estimate, because an estimate that is too low causes too
        few draft tokens to correct it; errors of several requests compensate each other."""
        weight = _PRIOR_ALONE if alone else _PRIOR_AMONG
        tried = self._tried + weight
        mean = (self._right + weight * prior) / tried
        return min(1.0, mean + math.sqrt(mean * (1 - mean) / tried)) if alone else mean

    def verified(self, tokens: int, drafted: int, accepted: int) -> None:
        """Record a verification. tokens: length of the request after it."""
        self._right = _KEPT_OF_REQUEST * self._right + accepted
        self._tried = _KEPT_OF_REQUEST * self._tried + accepted + (accepted < drafted)
        self._misses = 0
        if accepted == drafted:
            self.most = min(2 * max(self.most, drafted), MAX_DRAFT)
            self.next = tokens

    def missed(self, tokens: int, *, quick: bool) -> None:
        """Record a search that found no draft. tokens: length of the request. quick: True if tokens take so little time
        that the next search is delayed, longer each time."""
        self.next = tokens + (min(1 << self._misses, _MAX_WAIT) if quick else 1)
        self._misses += 1

    def pause(self, tokens: int) -> None:
        """Stop trying drafts for some tokens, because they do not pay."""
        self.paused = True
        self.next = tokens + self._pause if self._pause <= _LAST_PAUSE else math.inf
        self._pause *= 2
        self.most = FIRST_DRAFT

    def resume(self) -> None:
        """End the pause, because drafts pay again."""
        self.paused = False
        self._pause = _FIRST_PAUSE


@dataclass(slots=True)
class _SizeCost:
    """Measurements of steps of one size. last: the latest seconds. count: number of measurements. at: number of steps
    before the last one."""

    last: deque[float]
    count: int = 0
    at: int = 0


class StepCosts:
    """Mean seconds of steps by number of rows, without the longest of the latest steps, which another program may have
    delayed. The first measurement of a size is ignored, because it includes compilation and recording."""

    def __init__(self) -> None:
        self._sizes: dict[int, _SizeCost] = {}
        self._steps = 0
        self.measured: dict[int, float] = {}
        """The means by number of rows."""

    def update(self, rows: int, seconds: float) -> None:
        """Add a measurement. After many other steps, the earlier ones of this size are dropped."""
        self._steps += 1
        size = self._sizes.get(rows)
        if size is None:
            self._sizes[rows] = _SizeCost(deque(maxlen=_LAST_STEPS))
            return
        last = size.last
        if self._steps - size.at > _OLD_STEPS:
            last.clear()
        last.append(seconds)
        size.at = self._steps
        size.count += 1
        self.measured[rows] = (sum(last) - max(last)) / (len(last) - 1) if len(last) > 1 else seconds

    def hoped(self) -> dict[int, float]:
        """Return the means, lower the more other steps came since: speeds change, and a size that is not chosen because
        of an old measurement is so tried again now and then. A single measurement may be far too high."""
        hoped: dict[int, float] = {}
        for rows, seconds in self.measured.items():
            size = self._sizes[rows]
            faster = _HOPED_GAIN * (self._steps - size.at) / _OLD_STEPS + (_HOPED_ONCE if size.count == 1 else 0)
            hoped[rows] = seconds * (1 - min(faster, _MOST_HOPED))
        return hoped


def interpolated(points: Mapping[int, float], rows: Sequence[int]) -> list[float]:
    """Return the seconds of steps of these numbers of rows by linear interpolation, outside of `points` those of the
    nearest point. There must be at least one point."""
    sizes = sorted(points)
    seconds: list[float] = np.interp(rows, sizes, [points[size] for size in sizes]).tolist()
    return seconds
