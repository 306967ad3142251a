"""Measure the read bandwidth of a device's memory, which limits decoding."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import psutil
from bitnet_hal.device import Buffer, Device, DeviceType, View, whole
from bitnet_hal.errors import OutOfMemoryError
from bitnet_hal.kernels.catalogue import CATALOGUE, DENSE_TYPES
from bitnet_hal.kernels.types import DENSE_BLOCKS, DenseType
from bitnet_hal.launcher import Launcher

from bitnet_core.progress import Progress

_TABLE_BYTES = 1 << 30  # larger than any cache
_LEAST_BYTES = 64 << 20  # smaller tables may fit in a cache
_TABLES: tuple[tuple[DenseType, int], ...] = (("f16", 2560), ("f16", 4096), ("f32", 4096))
"""Types and widths of the table; devices differ in which one they read fastest."""
_LAUNCHES = 4
"""Launches per replay, so that the overhead of a replay is negligible."""
_LONG = 0.05
"""Duration in seconds of the replays between two synchronizations."""
_NOISE_BYTES = 64 << 20  # per upload
_HOST_BYTES = 1 << 30  # larger than the caches of servers
_HOST_PASSES = 4
"""Passes per measurement, so that starting the threads is negligible."""
_RUNS = 5
_LIMIT = 20.0
"""Seconds after which no further measurement starts."""
_REPLAY_SECONDS = 1.0
"""Maximum seconds of a replay: drivers and BITNET_GPU_TIMEOUT abort work that takes several seconds."""


def read_bandwidth(device: Device, progress: Progress | None = None) -> float:
    """Return the measured read bandwidth in bytes per second, after about _LIMIT seconds at most.

    GPUs run matmul_dense with one row, whose time is that of reading the table; on CPUs numpy computes maxima on all
    cores. Raises OutOfMemoryError if the device has no memory for a small table.
    """
    if device.info.type in (DeviceType.CPU, DeviceType.SOFTWARE) or device.info.fake:
        return _host_bandwidth(psutil.cpu_count(logical=False) or 1)
    limits = (_TABLE_BYTES, device.info.max_allocation, device.info.max_binding, device.free_memory() // 2)
    nbytes = min(limit for limit in limits if limit > 0)  # 0 and -1: unknown
    while True:  # tries smaller tables, because free memory may be unknown
        try:
            return _device_bandwidth(device, nbytes, progress or (lambda *_: None))
        except OutOfMemoryError:
            if nbytes // 2 < _LEAST_BYTES:
                raise
            nbytes //= 2


def _device_bandwidth(device: Device, nbytes: int, progress: Progress) -> float:
    """Return the best bandwidth over _TABLES. Tables have `nbytes` bytes, or fewer if a replay would be too long."""
    deadline = time.perf_counter() + _LIMIT
    best = 0.0
    if nbytes > _LEAST_BYTES:
        progress("measuring memory bandwidth", 0, len(_TABLES))
        slow = _table_bandwidth(device, *_TABLES[0], _LEAST_BYTES, deadline)
        nbytes = min(nbytes, max(_LEAST_BYTES, int(slow * _REPLAY_SECONDS / _LAUNCHES)))
    for done, (kind, width) in enumerate(_TABLES):
        progress("measuring memory bandwidth", done, len(_TABLES))
        if not best or time.perf_counter() < deadline:
            best = max(best, _table_bandwidth(device, kind, width, nbytes, deadline))
    progress("measuring memory bandwidth", len(_TABLES), len(_TABLES))
    return best


def _host_bandwidth(threads: int) -> float:
    nbytes = min(_HOST_BYTES, psutil.virtual_memory().available // 4)
    parts = np.array_split(np.ones(nbytes, np.uint8), threads)

    def read(part: npt.NDArray[np.uint8]) -> None:
        for _ in range(_HOST_PASSES):
            part.max()  # releases the GIL and is the cheapest reduction

    with ThreadPoolExecutor(threads) as pool:
        return _HOST_PASSES * nbytes / _best_seconds(lambda: list(pool.map(read, parts)))


def _table_bandwidth(device: Device, kind: DenseType, width: int, nbytes: int, deadline: float) -> float:
    dtype = DENSE_TYPES.index(kind)
    block, block_bytes = DENSE_BLOCKS[kind]
    rows = nbytes // (width // block * block_bytes)
    params = {"rows": 1, "outs": rows, "width": width, "y_stride": rows, "y_first": 0}
    spec = CATALOGUE["matmul_dense"]
    launcher = Launcher(device)
    buffers: list[Buffer] = []
    try:
        for binding in spec.bindings:
            buffers.append(device.alloc(binding.nbytes(params, {"DTYPE": dtype})))
        views = [whole(buffer) for buffer in buffers]
        _fill(device, views[1])
        launch = launcher.prepare(spec, params, views, {"DTYPE": dtype})
        recording = launcher.record([launch] * _LAUNCHES).recording

        def read(times: int = 1) -> None:
            for _ in range(times):
                device.replay(recording)
            device.synchronize()

        try:
            once = _best_seconds(read, deadline)
            times = max(1, int(_LONG / once))
            return times * _LAUNCHES * buffers[1].nbytes / _best_seconds(lambda: read(times), deadline)
        finally:
            recording.close()
    finally:
        launcher.release()
        for buffer in buffers:
            device.free(buffer)


def _fill(device: Device, view: View) -> None:
    """Fill a view with noise, because hardware may compress zeros."""
    noise = np.random.default_rng(0).integers(0, 256, min(view.nbytes, _NOISE_BYTES), np.uint8)
    for start in range(0, view.nbytes, _NOISE_BYTES):
        part = view.part(start, min(_NOISE_BYTES, view.nbytes - start))
        device.upload(part, noise[: part.nbytes].data)


def _best_seconds(action: Callable[[], object], deadline: float = float("inf")) -> float:
    """Return the shortest of _RUNS durations, or of those that start before the deadline (at least one)."""
    times: list[float] = []
    while not times or (len(times) < _RUNS and time.perf_counter() < deadline):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)
