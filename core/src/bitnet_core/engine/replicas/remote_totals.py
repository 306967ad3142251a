"""Totals of the engine in another process, on all devices that it had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from bitnet_core.engine.counters import zeros
from bitnet_core.engine.error_log import ErrorLog


class RemoteTotals:
    """The counters, seconds and errors of a Scheduler, and launches by device, as messages tell them.

    Each process counts from 0; what earlier ones of the engine counted is added. The errors are only counted.
    """

    def __init__(self) -> None:
        self.counts = zeros()
        self.seconds = {"prefill": 0.0, "decode": 0.0}
        self.errors = ErrorLog()
        self.launches: dict[str, Counter[str]] = {}
        self.begin()

    def begin(self) -> None:
        """Take what was counted so far as that of earlier processes."""
        self._counts = dict(self.counts)
        self._seconds = dict(self.seconds)
        self._launches = dict(self.launches)
        self._errors: Counter[str] = Counter()

    def update(self, figures: Mapping[str, int | float], seconds: Mapping[str, float]) -> None:
        """Take the counters and seconds of the process."""
        for name, count in self._counts.items():
            self.counts[name] = count + int(figures[name])
        for name, before in self._seconds.items():
            self.seconds[name] = before + seconds[name]

    def update_launches(self, launches: Mapping[str, Counter[str]]) -> None:
        """Take the launches of the process, by device request."""
        for request, counts in launches.items():
            self.launches[request] = self._launches.get(request, Counter()) + counts

    def update_errors(self, counts: Counter[str]) -> None:
        """Take the errors of the process by kind; those that are counted here stay."""
        self.errors.counts += counts - self._errors
        self._errors = counts

    def lost(self, error: Exception) -> Counter[str]:
        """Return the errors of the process with the one that ended it."""
        return self._errors + Counter([type(error).__name__])
