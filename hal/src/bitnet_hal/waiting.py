"""How long a device is waited for, also where the driver's own waits have no bound."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from bitnet_hal.device import DeviceType
from bitnet_hal.errors import UsageError

SPIN = 0.005
"""Seconds in which the driver is asked without a pause: what a token takes, or a prompt of a fast GPU."""
LATE = 0.005
"""Pauses between questions after that, as a share of the time waited so far: so much longer may a wait be."""
TIMEOUT_VARIABLE = "BITNET_GPU_TIMEOUT"
"""Seconds that a device may take for one wait, before GpuTimeoutError."""


def wait_limit(kind: DeviceType) -> float:
    """Seconds from BITNET_GPU_TIMEOUT; where it is not set 5, and 60 for a software device, which may compile a kernel
    when it first runs. UsageError if it is no positive number."""
    text = os.environ.get(TIMEOUT_VARIABLE) or ("60" if kind is DeviceType.SOFTWARE else "5")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"{TIMEOUT_VARIABLE} is '{text}', not a number of seconds above 0")
    return seconds


def ready_within(seconds: float, ready: Callable[[], bool]) -> bool:
    """Ask until it is ready; False when that took longer than `seconds`. Other threads run between the questions."""
    began = time.perf_counter()
    while not ready():
        waited = time.perf_counter() - began
        if waited > seconds:
            return False
        time.sleep(0 if waited < SPIN else LATE * waited)
    return True
