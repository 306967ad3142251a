"""Recent errors, including those that the engine recovered from, for logs and metrics."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass

from bitnet_hal.errors import GpuError

_KEPT = 100
_LONGEST = 500  # characters of a message
_DETAILS = ("backend", "device", "operation", "code", "hint")


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """A recorded error. time: seconds since the epoch. kind: name of its class.

    backend, device, operation, code, hint: as in GpuError; "" for other errors.
    """

    time: float
    kind: str
    message: str
    backend: str = ""
    device: str = ""
    operation: str = ""
    code: str = ""
    hint: str = ""


class ErrorLog:
    """The last _KEPT errors in `recent`, and in `counts` the number of all errors by class name."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.recent: deque[ErrorRecord] = deque(maxlen=_KEPT)

    def add(self, error: BaseException) -> None:
        """Count an error and add it to `recent`."""
        kind = type(error).__name__
        self.counts[kind] += 1
        details: dict[str, str] = {}
        if isinstance(error, GpuError):
            details = {name: str(getattr(error, name))[:_LONGEST] for name in _DETAILS}
        self.recent.append(ErrorRecord(time.time(), kind, str(error)[:_LONGEST], **details))
