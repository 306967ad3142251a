"""Bounded waits for drivers whose own have no bound."""

from __future__ import annotations

import time
from collections.abc import Callable

SPIN = 0.002
"""Seconds in which the driver is asked without a pause: what a token takes."""
PAUSE = 1e-4
"""Seconds between questions after that."""


def ready_within(seconds: float, ready: Callable[[], bool]) -> bool:
    """Ask until it is ready; False when that took longer than `seconds`. Other threads run between the questions."""
    began = time.perf_counter()
    while not ready():
        waited = time.perf_counter() - began
        if waited > seconds:
            return False
        time.sleep(0 if waited < SPIN else PAUSE)
    return True
