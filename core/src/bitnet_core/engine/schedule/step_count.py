"""Choose how many greedy steps run before the host reads their tokens, and how many are queued after these."""

from __future__ import annotations

MAX_STEPS = 32
"""Largest number of steps before the host reads tokens; counts double up to this, so that the first tokens come at
once."""

_MIN_UNCHECKED_TOKENS = 16
"""Below this many tokens per interval, looking for draft tokens at every token pays off."""

_WAITING_SECONDS = 0.02
"""Longest time in seconds between two reads while another request waits for admission."""

_SHARE = 10
_SHORT_SECONDS = 0.01
"""When two runs of steps are in flight, each gets 1 / _SHARE of the interval, but at least _SHORT_SECONDS: the host
needs about a millisecond for each, and a new request waits for both."""


class StepCountPolicy:
    """Number of steps per read. seconds: longest interval between two reads, so that text keeps flowing on slow
    devices. token_seconds: duration of the last step; 0: unknown."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.token_seconds = 0.0
        self.last = 0

    def restart(self) -> None:
        """Start with one step again."""
        self.last = 0

    def update(self, count: int, seconds: float) -> None:
        """Record that `count` steps took this many seconds."""
        self.last = count
        self.token_seconds = seconds / count

    def length(self, tokens_left: int, *, waiting: bool, followed: bool) -> int:
        """Number of steps to run now, for requests that may all generate tokens_left more: doubles up to the time
        budget. followed: further steps may be queued after these."""
        most = self._affordable(min(self.seconds, _WAITING_SECONDS) if waiting else self.seconds)
        return max(1, min(2 * self.last, (followed and self._short()) or most, tokens_left, MAX_STEPS))

    def ahead(self, count: int, tokens_left: int) -> int:
        """Number of steps to queue after the next `count`, given how many tokens are left then."""
        return max(0, min(2 * count, self._short(), tokens_left))

    @property
    def slow(self) -> bool:
        """True if a step takes so long that drafting is affordable at every token."""
        return self.token_seconds * _MIN_UNCHECKED_TOKENS > self.seconds

    def _short(self) -> int:
        """Largest number of steps if two runs are in flight: together no longer than one alone. 0: no time for that."""
        short = max(self.seconds / _SHARE, _SHORT_SECONDS)
        return min(self._affordable(self.seconds) // 2, max(1, self._affordable(short)), MAX_STEPS // 2)

    def _affordable(self, seconds: float) -> int:
        return int(seconds / self.token_seconds) if self.token_seconds else MAX_STEPS
