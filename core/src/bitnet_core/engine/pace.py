"""How many greedy tokens are made before the host looks, and how many are queued behind these."""

from __future__ import annotations

MOST = 32
"""Greedy tokens made before the host looks; bursts grow to this so that the first tokens come at once."""

_LOOKING = 16
"""Fewer tokens than these in a burst's time, and a look at each costs less than it may find."""

_WAITING_SECONDS = 0.02
"""A burst takes about this long at most while another text waits for its turn."""

_SHARE, _SHORT_SECONDS = 10, 0.01
"""Of a burst's time one that another is queued behind takes a share, or so many seconds where that is more: the host
needs about one millisecond for each and must not be late, and a text that comes waits for both."""


class Pace:
    """seconds: about how long bursts may take, so that text keeps flowing on slow devices. token_seconds: what a token
    of every text took last; 0: unknown."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.token_seconds = seconds, 0.0
        self.last = 0

    def restart(self) -> None:
        """Begin with short bursts."""
        self.last = 0

    def book(self, count: int, seconds: float) -> None:
        """A burst of so many tokens took so long."""
        self.last, self.token_seconds = count, seconds / count

    def length(self, room: int, *, waiting: bool, followed: bool) -> int:
        """Of the next burst, of texts that all have room for so many tokens: bursts double up to what time allows.
        followed: another may be queued behind it."""
        most = self._affordable(min(self.seconds, _WAITING_SECONDS) if waiting else self.seconds)
        return max(1, min(2 * self.last, (followed and self._short()) or most, room, MOST))

    def ahead(self, count: int, room: int) -> int:
        """Tokens to queue behind the next `count`, where there is room for so many behind them."""
        return max(0, min(2 * count, self._short(), room))

    @property
    def slow(self) -> bool:
        """Time to look at every token."""
        return self.token_seconds * _LOOKING > self.seconds

    def _short(self) -> int:
        """Most tokens of bursts of which two are under way: together no more than one alone. 0: there is no time."""
        short = max(self.seconds / _SHARE, _SHORT_SECONDS)
        return min(self._affordable(self.seconds) // 2, max(1, self._affordable(short)), MOST // 2)

    def _affordable(self, seconds: float) -> int:
        return int(seconds / self.token_seconds) if self.token_seconds else MOST
