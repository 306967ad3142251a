"""Recent errors, including those that the engine recovered from, for logs and metrics."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass

_KEPT = 100


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """A recorded error. time: seconds since the epoch."""

    time: float
    kind: str
    message: str


class ErrorLog:
    """The last _KEPT errors in `recent`, and in `counts` the number of all errors by class name."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.recent: deque[ErrorRecord] = deque(maxlen=_KEPT)

    def add(self, error: BaseException) -> None:
        """Count an error and add it to `recent`."""
        kind = type(error).__name__
        self.counts[kind] += 1
        self.recent.append(ErrorRecord(time.time(), kind, str(error)[:500]))
