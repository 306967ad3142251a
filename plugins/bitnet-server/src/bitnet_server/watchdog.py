"""Time limits that are set thousands of times a second and hardly ever pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Watchdog:
    """Calls `action` where the time that was set last has passed, unless it was put off before.

    A timer of the event loop costs more than what it watches here, so one goes on for many settings.
    """

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action
        self._loop = asyncio.get_running_loop()
        self._at: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float) -> None:
        """In so many seconds."""
        self._at = self._loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._at:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(self._at, self._ring)

    def off(self) -> None:
        """Not any more."""
        self._at = None

    def stop(self) -> None:
        """For good."""
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
