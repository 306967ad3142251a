"""Recordings as CUDA graphs: which launches may start while others run, and what they fetch for later ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bitnet_core.hal.base import Bound, Launch

from bitnet_cuda.driver import driver
from bitnet_cuda.memory import CudaBuffer

if TYPE_CHECKING:
    from bitnet_cuda.device import CudaDevice, CudaKernel

    CudaLaunch = Launch[CudaBuffer, CudaKernel]

AHEAD = 2
"""A kernel asks for the weights of the launch so many places further on, into the L2 cache."""
MOST_AHEAD = 16 << 20
"""Largest matrix to ask for, in bytes: it should still be in the cache when it is wanted."""
EARLY = {
    "matmul_ternary": {"w"},
    "matmul_ternary_block": {"w", "wscale"},
    "matmul_dense": {"w"},
    "norm_matmul": {"gamma", "w", "wscale"},
    "norm_matmul_glu": {"gamma", "w", "wscale"},
    "rope_attention": {"step", "tables", "k_cache", "v_cache"},
    "draft_logits": {"codes", "scale", "error"},
}
"""Bindings that a kernel reads before it has waited for the kernels before it."""
FETCHING = frozenset({"norm_matmul", "norm_matmul_glu", "rope_attention"})
"""Kernels whose last arguments are what they fetch for a later one: its address and its bytes."""
EXTERNAL = 1
"""CU_EVENT_RECORD_EXTERNAL: while a stream is captured, the event becomes a node of the graph."""


def may_overlap(launches: Sequence[CudaLaunch]) -> list[bool]:
    """For each launch: what it reads before it waits for those before it is not written in this recording."""
    written: set[CudaBuffer] = set()
    result = []
    for launch in launches:
        bound = list(zip(launch.kernel.spec.bindings, launch.bound, strict=False))
        early = EARLY.get(launch.kernel.spec.name, set())
        result.append(not any(view.buffer in written for binding, view in bound if binding.name in early))
        written.update(view.buffer for binding, view in bound if binding.access != "r")
    return result


def weights_ahead(launches: Sequence[CudaLaunch]) -> list[Bound[CudaBuffer] | None]:
    """For each launch: the ternary weights of the one AHEAD places on, if it has any and they are not too large."""
    weights: list[Bound[CudaBuffer] | None] = []
    for launch in launches:
        names = [binding.name for binding in launch.kernel.spec.bindings]
        view = launch.bound[names.index("w")] if "w" in names else None
        weights.append(view if view and view.nbytes <= MOST_AHEAD else None)
    return [weights[i + AHEAD] if i + AHEAD < len(weights) else None for i in range(len(weights))]


def graph_of(device: CudaDevice, launches: Sequence[CudaLaunch], events: Sequence[Any] = ()) -> Any:
    """An executable graph of launches. events: one before and one after each launch, which then do not overlap."""
    api, check = driver(), device.check
    overlaps = [False] * len(launches) if events else may_overlap(launches)
    ahead = weights_ahead(launches)
    mode = api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    check(api.cuStreamBeginCapture(device.stream, mode), "record")
    try:
        for event in events[:1]:
            check(api.cuEventRecordWithFlags(event, device.stream, EXTERNAL), "record")
        for i, launch in enumerate(launches):
            device.queue(launch, overlaps=overlaps[i], ahead=ahead[i])
            for event in events[i + 1 : i + 2]:
                check(api.cuEventRecordWithFlags(event, device.stream, EXTERNAL), "record")
    finally:
        graph = check(api.cuStreamEndCapture(device.stream), "record")[0]
    try:
        return check(api.cuGraphInstantiate(graph, 0), "record")[0]
    finally:
        api.cuGraphDestroy(graph)


def seconds_of(device: CudaDevice, launches: Sequence[CudaLaunch]) -> list[float]:
    """Run launches once; seconds of each, by events inside a graph, so that no host time lies between."""
    api, check = driver(), device.check
    events = [check(api.cuEventCreate(0), "time")[0] for _ in range(len(launches) + 1)]
    try:
        executable = graph_of(device, launches, events)
        check(api.cuGraphLaunch(executable, device.stream), "time")
        device.synchronize()
        check(api.cuGraphExecDestroy(executable), "time")
        return [1e-3 * float(check(api.cuEventElapsedTime(a, b), "time")[0]) for a, b in pairwise(events)]
    finally:
        for event in events:
            api.cuEventDestroy(event)
