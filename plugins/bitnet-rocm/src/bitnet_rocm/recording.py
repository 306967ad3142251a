"""Recordings as HIP graphs, and their times."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bitnet_core.errors import LaunchError, UnsupportedError
from bitnet_core.hal.base import Launch

from bitnet_rocm.driver import driver
from bitnet_rocm.memory import RocmBuffer

if TYPE_CHECKING:
    from bitnet_rocm.device import RocmDevice, RocmKernel

    RocmLaunch = Launch[RocmBuffer, RocmKernel]

log = logging.getLogger(__name__)


def graph_of(device: RocmDevice, launches: Sequence[RocmLaunch]) -> Any:
    """An executable graph of launches; None where the runtime has no graphs that work."""
    api, check = driver(), device.check
    try:
        mode = api.hipStreamCaptureMode.hipStreamCaptureModeRelaxed
        check(api.hipStreamBeginCapture(device.stream, mode), "record")
        try:
            for launch in launches:
                device.queue(launch)
        finally:
            graph = check(api.hipStreamEndCapture(device.stream), "record")[0]
        executable = check(api.hipGraphInstantiateWithFlags(graph, 0), "record")[0]
        check(api.hipGraphDestroy(graph), "record")
    except (LaunchError, UnsupportedError, RuntimeError) as exc:  # RuntimeError: the symbol is missing
        log.info("launches are repeated one by one, since a graph failed: %s", exc)
        return None
    return executable


def seconds_of(device: RocmDevice, launches: Sequence[RocmLaunch]) -> list[float]:
    """Run launches once; seconds of each, by events between them."""
    api, check = driver(), device.check
    events = [check(api.hipEventCreate(), "time")[0] for _ in range(len(launches) + 1)]
    try:
        check(api.hipEventRecord(events[0], device.stream), "time")
        for launch, event in zip(launches, events[1:], strict=True):
            device.queue(launch)
            check(api.hipEventRecord(event, device.stream), "time")
        device.synchronize()
        return [1e-3 * float(check(api.hipEventElapsedTime(a, b), "time")[0]) for a, b in pairwise(events)]
    finally:
        for event in events:
            api.hipEventDestroy(event)
