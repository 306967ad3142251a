"""How fast a device reads its memory, which limits decoding."""

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

_TABLE_BYTES = 1 << 30  # larger than any cache
_LEAST_BYTES = 64 << 20  # below, a cache may hold the table
_TABLES: tuple[tuple[DenseType, int], ...] = (("f16", 2560), ("f16", 4096), ("f32", 4096))
"""Types and widths of the table: which one a kernel reads fastest differs between devices."""
_LAUNCHES = 4
"""In one replay, so that its beginning costs little."""
_LONG = 0.05
"""Seconds that replays take before the host waits for them."""
_PIECE = 64 << 20  # of noise at a time
_HOST_BYTES = 1 << 30  # larger than the caches of servers
_HOST_PASSES = 4
"""Over the bytes, so that handing them to the threads costs little."""
_RUNS = 5
_LIMIT = 20.0
"""Seconds after which no further measurement is begun."""
_SUBMITTED = 1.0
"""Seconds that one replay may take: drivers stop what takes some seconds, and so do we (BITNET_GPU_TIMEOUT)."""

Progress = Callable[[str, int, int], None]


def read_bandwidth(device: Device, progress: Progress | None = None) -> float:
    """Bytes per second: by matmul_dense of one row, which does little but read its table; by numpy maxima on all cores
    where the device computes on them. OutOfMemoryError if beside what the device holds there is not even room for a
    small table. It takes some _LIMIT seconds at most, on a device that is as slow as a CPU too.

    progress(what, done, total): called as it goes on.
    """
    if device.info.type in (DeviceType.CPU, DeviceType.SOFTWARE) or device.info.fake:
        return _host_bandwidth(psutil.cpu_count(logical=False) or 1)
    limits = (_TABLE_BYTES, device.info.max_allocation, device.info.max_binding, device.free_memory() // 2)
    nbytes = min(limit for limit in limits if limit > 0)  # a driver need not tell its limits
    while True:  # some drivers do not tell how much is free either
        try:
            return _device_bandwidth(device, nbytes, progress or (lambda *_: None))
        except OutOfMemoryError:
            if nbytes // 2 < _LEAST_BYTES:
                raise
            nbytes //= 2


def _device_bandwidth(device: Device, nbytes: int, progress: Progress) -> float:
    """The best of the tables, of `nbytes` each or what the device reads in a quarter of _SUBMITTED."""
    deadline, best = time.perf_counter() + _LIMIT, 0.0
    if nbytes > _LEAST_BYTES:
        progress("measuring memory bandwidth", 0, len(_TABLES))
        slow = _table_bandwidth(device, *_TABLES[0], _LEAST_BYTES, deadline)
        nbytes = min(nbytes, max(_LEAST_BYTES, int(slow * _SUBMITTED / _LAUNCHES)))
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
            part.max()  # numpy lets other threads run; a maximum costs it least per byte

    with ThreadPoolExecutor(threads) as pool:
        return _HOST_PASSES * nbytes / _best_seconds(lambda: list(pool.map(read, parts)))


def _table_bandwidth(device: Device, kind: DenseType, width: int, nbytes: int, deadline: float) -> float:
    dtype, (block, block_bytes) = DENSE_TYPES.index(kind), DENSE_BLOCKS[kind]
    rows = nbytes // (width // block * block_bytes)
    params = {"rows": 1, "outs": rows, "width": width, "y_stride": rows, "y_first": 0}
    spec, launcher = CATALOGUE["matmul_dense"], Launcher(device)
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
    """Noise: zeros might be kept or moved in some shorter form."""
    noise = np.random.default_rng(0).integers(0, 256, min(view.nbytes, _PIECE), np.uint8)
    for start in range(0, view.nbytes, _PIECE):
        part = view.part(start, min(_PIECE, view.nbytes - start))
        device.upload(part, noise[: part.nbytes].data)


def _best_seconds(action: Callable[[], object], deadline: float = float("inf")) -> float:
    """The least of _RUNS, or of those begun before the deadline and one."""
    times: list[float] = []
    while not times or (len(times) < _RUNS and time.perf_counter() < deadline):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)
