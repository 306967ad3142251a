"""How fast a device reads its memory, which limits decoding."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil

from bitnet_core.hal.device import Buffer, Device, DeviceType, whole
from bitnet_core.kernels.catalogue import CATALOGUE, DENSE_TYPES
from bitnet_core.model.launch import Launcher

_TABLE_BYTES = 1 << 30  # larger than any cache, and long enough for a launch to cost little
_TABLE_WIDTH = 4096
_READS = 8
"""Of the table in one replay, so that its beginning and end cost little."""
_HOST_BYTES = 512 << 20  # larger than the caches of servers
_RUNS = 5


def read_bandwidth(device: Device) -> float:
    """Bytes per second: by matmul_dense of one row, which does little but read its matrix; by numpy maxima on all cores
    where the device computes on them."""
    if device.info.type in (DeviceType.CPU, DeviceType.SOFTWARE) or device.info.fake:
        return _host_bandwidth(psutil.cpu_count(logical=False) or 1)
    return _device_bandwidth(device)


def _host_bandwidth(threads: int) -> float:
    nbytes = min(_HOST_BYTES, psutil.virtual_memory().available // 4)
    parts = np.array_split(np.ones(nbytes, np.uint8), threads)
    with ThreadPoolExecutor(threads) as pool:  # numpy lets other threads run; a maximum costs it least per byte
        return nbytes / _best_seconds(lambda: list(pool.map(np.max, parts)))


def _device_bandwidth(device: Device) -> float:
    limits = (_TABLE_BYTES, device.info.max_allocation, device.info.max_binding, device.free_memory() // 2)
    rows = min(limit for limit in limits if limit > 0) // (2 * _TABLE_WIDTH)  # f16; a driver need not tell its limits
    params = {"rows": 1, "outs": rows, "width": _TABLE_WIDTH, "y_stride": rows, "y_first": 0}
    launcher = Launcher(device)
    buffers: list[Buffer] = []
    try:
        for nbytes in (4 * _TABLE_WIDTH, 2 * _TABLE_WIDTH * rows, 4 * rows):
            buffers.append(device.alloc(nbytes))
        views = [whole(buffer) for buffer in buffers]
        launch = launcher.prepare(CATALOGUE["matmul_dense"], params, views, {"DTYPE": DENSE_TYPES.index("f16")})
        recording = launcher.record([launch] * _READS).recording

        def read() -> None:
            device.replay(recording)
            device.synchronize()

        try:
            return _READS * buffers[1].nbytes / _best_seconds(read)
        finally:
            recording.close()
    finally:
        for buffer in buffers:
            device.free(buffer)


def _best_seconds(action: Callable[[], object]) -> float:
    times = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)
