"""Time limits that are set thousands of times a second and rarely expire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Watchdog:
    """A deadline that calls `action` when it expires, unless it was moved or cancelled before.

    A timer of the event loop costs more than the work that it watches here, so one timer serves many settings.
    """

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action
        self._loop = asyncio.get_running_loop()
        self._at: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float) -> None:
        """Set the deadline to `seconds` from now."""
        self._at = self._loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._at:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(self._at, self._ring)

    def off(self) -> None:
        """Cancel the deadline."""
        self._at = None

    def stop(self) -> None:
        """Stop the timer."""
        self._at = None
        if self._timer is not None:
            self._timer.cancel()

    def _ring(self) -> None:
        self._timer = None
        if self._at is None:
            return
        if self._loop.time() < self._at:
            self._timer = self._loop.call_at(self._at, self._ring)
        else:
            self._at = None
            self._action()
