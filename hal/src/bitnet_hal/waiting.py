"""Bounded waits for a device, also for drivers whose own waits are unbounded."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable
from functools import lru_cache

from bitnet_hal.device import DeviceType
from bitnet_hal.errors import UsageError
from bitnet_hal.kernels.catalogue import KV_BLOCK
from bitnet_hal.kernels.params import PRODUCT
from bitnet_hal.kernels.spec import KernelSpec

SPIN = 0.005
"""Seconds of polling without a sleep: the time of a token, or of a prompt on a fast GPU. Even `time.sleep(0)` takes
some 70 us on Linux (before Python 3.14)."""
LATE = 0.005
"""Later pauses between polls, as a share of the time waited so far; this is the largest relative delay of a wait."""
LATE_AHEAD = 0.1
"""The same while the device has further work: each poll takes the interpreter's lock from other threads."""
TIMEOUT_VARIABLE = "BITNET_GPU_TIMEOUT"
"""Environment variable with the maximum seconds of a wait, not counting the time that queued work may take."""


@lru_cache(maxsize=4096)
def multiply_adds(spec: KernelSpec, params: bytes) -> float:
    """Return the multiply-adds of a launch: of a matrix product, or of attention over the longest context; 0 for other
    kernels, which take little time."""
    values = spec.unpack(params)
    if values.keys() >= PRODUCT:
        return float(values["rows"] * values["outs"] * values["width"])
    if values.keys() >= {"rows", "n_heads", "head_dim", "max_blocks"}:
        return float(2 * values["rows"] * values["n_heads"] * values["head_dim"] * values["max_blocks"] * KV_BLOCK)
    return 0.0


def wait_limit(kind: DeviceType) -> float:
    """Return the seconds of BITNET_GPU_TIMEOUT; by default 5, and 60 for software devices, which compile at first use.
    `QueuedWork` adds the time that queued work may take.

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


_CHECKED = bytes(1 << 14)
"""Bytes whose checksum takes some 3 us, without the interpreter's lock since they are more than 5 KiB."""


def ready_within(seconds: float, ready: Callable[[], bool], *, ahead: bool = False, spins: bool = False) -> bool:
    """Poll `ready`, yielding to other threads. Return False if it is not ready after `seconds`. ahead: poll less often,
    as the device has further work. spins: do not sleep in the first SPIN seconds, as the device needs no processor of
    the host."""
    began = time.perf_counter()
    while not ready():
        waited = time.perf_counter() - began
        if waited > seconds:
            return False
        if ahead:
            time.sleep(LATE_AHEAD * waited)
        elif spins and waited < SPIN:
            zlib.crc32(_CHECKED)  # other threads can take the interpreter's lock meanwhile
        else:
            time.sleep(LATE * waited)
    return True
