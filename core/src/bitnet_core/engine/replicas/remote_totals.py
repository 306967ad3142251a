"""Totals of the engine in another process, summed over the processes that it has had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from bitnet_core.engine.counters import zeros
from bitnet_core.engine.error_log import ErrorLog


class RemoteTotals:
    """The counters, seconds and errors of a Scheduler, and launches by device, updated from messages.

    Each process counts from 0; the totals of the engine's earlier processes are added. Of errors there are only counts.
    """

    def __init__(self) -> None:
        self.counts = zeros()
        self.seconds = {"prefill": 0.0, "decode": 0.0}
        self.errors = ErrorLog()
        self.launches: dict[str, Counter[str]] = {}
        self.begin()

    def begin(self) -> None:
        """Start counting a new process: the totals so far become those of earlier processes."""
        self._counts = dict(self.counts)
        self._seconds = dict(self.seconds)
        self._launches = dict(self.launches)
        self._errors: Counter[str] = Counter()

    def update(self, figures: Mapping[str, int | float], seconds: Mapping[str, float]) -> None:
        """Set the counters and seconds of the process."""
        for name, count in self._counts.items():
            self.counts[name] = count + int(figures[name])
        for name, before in self._seconds.items():
            self.seconds[name] = before + seconds[name]

    def update_launches(self, launches: Mapping[str, Counter[str]]) -> None:
        """Set the launches of the process, by device request."""
        for request, counts in launches.items():
            self.launches[request] = self._launches.get(request, Counter()) + counts

    def update_errors(self, counts: Counter[str]) -> None:
        """Set the errors of the process by kind; those counted in this process are kept."""
        self.errors.counts += counts - self._errors
        self._errors = counts

    def lost(self, error: Exception) -> Counter[str]:
        """Return the error counts of the process, including the error that ended it."""
        return self._errors + Counter([type(error).__name__])
