"""Timing each launch of a recording by events inside a graph, so that no host time lies between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from bitnet_cuda.errors import check
from bitnet_cuda.query import driver

EXTERNAL = 1
"""CU_EVENT_RECORD_EXTERNAL: while a stream is captured, the event becomes a node of the graph."""


def seconds_of(stream: Any, launches: Sequence[Callable[[], None]], device: str) -> list[float]:
    """Run launches once as a graph, with an event before, between and after them; seconds of each."""
    api = driver()

    def checked(result: tuple[Any, ...]) -> Any:
        values = check(result, "time", device=device)
        return values[0] if values else None

    events = [checked(api.cuEventCreate(0)) for _ in range(len(launches) + 1)]
    try:
        mode = api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        checked(api.cuStreamBeginCapture(stream, mode))
        try:
            checked(api.cuEventRecordWithFlags(events[0], stream, EXTERNAL))
            for launch, event in zip(launches, events[1:], strict=True):
                launch()
                checked(api.cuEventRecordWithFlags(event, stream, EXTERNAL))
        finally:
            graph = checked(api.cuStreamEndCapture(stream))
        executable = checked(api.cuGraphInstantiate(graph, 0))
        checked(api.cuGraphDestroy(graph))
        checked(api.cuGraphLaunch(executable, stream))
        checked(api.cuStreamSynchronize(stream))
        checked(api.cuGraphExecDestroy(executable))
        return [1e-3 * float(checked(api.cuEventElapsedTime(before, after))) for before, after in pairwise(events)]
    finally:
        for event in events:
            api.cuEventDestroy(event)
