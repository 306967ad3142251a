"""Bounded waits for a device, also for drivers whose own waits are unbounded."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from bitnet_hal.device import DeviceType
from bitnet_hal.errors import UsageError

SPIN = 0.005
"""Seconds of polling without a pause: the time of a token, or of a prompt on a fast GPU."""
LATE = 0.005
"""Pause between polls after that, as a share of the time waited so far: the relative delay of a wait."""
TIMEOUT_VARIABLE = "BITNET_GPU_TIMEOUT"
"""Variable with the seconds of one wait, after which GpuTimeoutError is raised."""


def wait_limit(kind: DeviceType) -> float:
    """Return the seconds of BITNET_GPU_TIMEOUT; by default 5, and 60 for software devices, which compile at first use.

    Raises UsageError if it is not a positive number.
    """
    text = os.environ.get(TIMEOUT_VARIABLE) or ("60" if kind is DeviceType.SOFTWARE else "5")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"{TIMEOUT_VARIABLE} is '{text}', not a number of seconds above 0")
    return seconds


def ready_within(seconds: float, ready: Callable[[], bool]) -> bool:
    """Poll `ready`, yielding to other threads. Return False if it is not ready after `seconds`."""
    began = time.perf_counter()
    while not ready():
        waited = time.perf_counter() - began
        if waited > seconds:
            return False
        time.sleep(0 if waited < SPIN else LATE * waited)
    return True
