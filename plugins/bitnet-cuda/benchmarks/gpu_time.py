"""Timing launches on the GPU: replays of a recording between two CUDA events, over operands that no cache holds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from bitnet_core.hal import View
from bitnet_core.hal.device import whole
from bitnet_core.model.launch import Launch
from bitnet_cuda.device import CudaDevice
from bitnet_cuda.errors import check
from bitnet_cuda.query import driver

REPLAYS = 7
COLD_BYTES = 192 << 20
"""Operands are used in turn until this many bytes lie between two uses: several times the L2 cache."""


def put(device: CudaDevice, array: npt.NDArray[np.generic]) -> View:
    """An array in a buffer of its own."""
    contiguous = np.ascontiguousarray(array)
    view = whole(device.alloc(contiguous.nbytes))
    device.upload(view, contiguous.reshape(-1).view(np.uint8).data)
    return view


def copies(device: CudaDevice, array: npt.NDArray[np.generic]) -> list[View]:
    """As many copies of an array as COLD_BYTES hold, at most 64."""
    first = put(device, array)
    views = [first]
    for _ in range(min(64, COLD_BYTES // first.nbytes)):
        views.append(whole(device.alloc(first.nbytes)))
        device.copy(first, views[-1])
    return views


def seconds(device: CudaDevice, launches: Sequence[Launch]) -> float:
    """Median seconds of one of `launches`, replayed together."""
    with device.record() as recording:
        for launch in launches:
            device.launch(launch.kernel, launch.grid, launch.views, launch.params)
    api, stream = driver(), device.stream
    start, end = (check(api.cuEventCreate(0), "create event")[0] for _ in range(2))
    times = []
    for _ in range(REPLAYS):
        check(api.cuEventRecord(start, stream), "time")
        device.replay(recording)
        check(api.cuEventRecord(end, stream), "time")
        device.synchronize()
        times.append(check(api.cuEventElapsedTime(start, end), "time")[0] * 1e-3 / len(launches))
    recording.close()
    for event in (start, end):
        api.cuEventDestroy(event)
    return statistics.median(times[1:])
