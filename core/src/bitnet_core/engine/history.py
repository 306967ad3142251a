"""What went wrong lately, also where the engine went on: for people and for metrics."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass

_KEPT = 100


@dataclass(frozen=True, slots=True)
class Trouble:
    """One error. time: seconds since the epoch."""

    time: float
    kind: str
    message: str


class ErrorHistory:
    """counts: errors by the name of their class since the start. recent: the last _KEPT of them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.recent: deque[Trouble] = deque(maxlen=_KEPT)

    def add(self, error: BaseException) -> None:
        """Note an error."""
        kind = type(error).__name__
        self.counts[kind] += 1
        self.recent.append(Trouble(time.time(), kind, str(error)[:500]))
