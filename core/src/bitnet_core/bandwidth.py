"""How fast a device reads its memory, which limits decoding."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import psutil

from bitnet_core.errors import OutOfMemoryError
from bitnet_core.hal.device import Buffer, Device, DeviceType, View, whole
from bitnet_core.kernels.catalogue import CATALOGUE, DENSE_TYPES
from bitnet_core.model.launch import Launcher
from bitnet_core.model.weights import DENSE_BLOCKS, DenseType

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


def read_bandwidth(device: Device) -> float:
    """Bytes per second: by matmul_dense of one row, which does little but read its table; by numpy maxima on all cores
    where the device computes on them. OutOfMemoryError if beside what the device holds there is not even room for a
    small table."""
    if device.info.type in (DeviceType.CPU, DeviceType.SOFTWARE) or device.info.fake:
        return _host_bandwidth(psutil.cpu_count(logical=False) or 1)
    limits = (_TABLE_BYTES, device.info.max_allocation, device.info.max_binding, device.free_memory() // 2)
    nbytes = min(limit for limit in limits if limit > 0)  # a driver need not tell its limits
    while True:  # some drivers do not tell how much is free either
        try:
            return max(_table_bandwidth(device, kind, width, nbytes) for kind, width in _TABLES)
        except OutOfMemoryError:
            if nbytes // 2 < _LEAST_BYTES:
                raise
            nbytes //= 2


def _host_bandwidth(threads: int) -> float:
    nbytes = min(_HOST_BYTES, psutil.virtual_memory().available // 4)
    parts = np.array_split(np.ones(nbytes, np.uint8), threads)

    def read(part: npt.NDArray[np.uint8]) -> None:
        for _ in range(_HOST_PASSES):
            part.max()  # numpy lets other threads run; a maximum costs it least per byte

    with ThreadPoolExecutor(threads) as pool:
        return _HOST_PASSES * nbytes / _best_seconds(lambda: list(pool.map(read, parts)))


def _table_bandwidth(device: Device, kind: DenseType, width: int, nbytes: int) -> float:
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
            times = max(1, int(_LONG / _best_seconds(read)))
            return times * _LAUNCHES * buffers[1].nbytes / _best_seconds(lambda: read(times))
        finally:
            recording.close()
    finally:
        for buffer in buffers:
            device.free(buffer)


def _fill(device: Device, view: View) -> None:
    """Noise: zeros might be kept or moved in some shorter form."""
    noise = np.random.default_rng(0).integers(0, 256, min(view.nbytes, _PIECE), np.uint8)
    for start in range(0, view.nbytes, _PIECE):
        part = view.part(start, min(_PIECE, view.nbytes - start))
        device.upload(part, noise[: part.nbytes].data)


def _best_seconds(action: Callable[[], object]) -> float:
    times = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)
