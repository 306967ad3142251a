"""A simulated GPU without arithmetic: it takes the time of one, and chooses tokens at random.

It is a plugin for `server_host.py`, which measures the host's work beside such a device. Like a GPU's driver it gives
up the interpreter's lock in every call, works in the order of the queue, and lets the host go on meanwhile. Its times
are those that an H200 takes for 2B-4T (docs/performance/gpus.md).
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from select import select
from typing import NamedTuple

import numpy as np
import pluggy
from bitnet_hal.base import BoundLaunch, LaunchRecording
from bitnet_hal.device import Device, DeviceInfo, DeviceType
from bitnet_hal.kernels.catalogue import KV_BLOCK
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyBuffer, NumpyDevice, NumpyKernel

STEPS = ((1, 0.51e-3), (8, 0.73e-3), (32, 1.10e-3), (64, 1.47e-3))
"""Rows of a step and its seconds; each further row takes _ROW."""

_ROW = 1 / 117_000
_MEMORY = 80 << 30
"""Bytes, said to be there, as large GPUs get longer prompt steps."""
_FUSED = {"norm_matmul", "norm_matmul_glu", "matmul_ternary_glu", "top_k"}
_TOKENS = range(33, 91)
"""Ids of letters in the byte-level vocabulary of synthetic models."""

hookimpl = pluggy.HookimplMarker("bitnet")

Launch = BoundLaunch[NumpyBuffer, NumpyKernel]
Recording = LaunchRecording[NumpyBuffer, NumpyKernel]


class TimedStep(NamedTuple):
    """The rows of a step, and the times of time.perf_counter() at which the device begins and ends it."""

    rows: int
    began: float
    ended: float


def step_seconds(rows: int) -> float:
    """Return the seconds of a step of this many rows."""
    most, seconds = STEPS[-1]
    if rows >= most:
        return seconds + (rows - most) * _ROW
    after = max(1, bisect_left(STEPS, (rows, 0.0)))
    (few, least), (many, longest) = list(pairwise(STEPS))[after - 1]
    return least + (longest - least) * (rows - few) / (many - few)


class TimedDevice(NumpyDevice):
    """The simulated device. Results are written when work is queued; reading them waits until it would be done.

    steps: those of the model, in the order of the queue.
    """

    def __init__(self, info: DeviceInfo) -> None:
        super().__init__(info)
        self.steps: list[TimedStep] = []
        self._idle_at = 0.0  # time.perf_counter() when the queue is empty
        self._random = np.random.default_rng(0)

    def _run(self, launch: Launch) -> None:
        _call()
        self._effect(launch)

    def _record(self, recording: Recording) -> None:
        recording.native = [launch for launch in recording.launches if launch.kernel.spec.name in _EFFECTS]

    def _replay(self, recording: Recording) -> None:
        _call()
        for launch in recording.native:
            self._effect(launch)

    def _upload(self, buffer: NumpyBuffer, offset: int, source: memoryview) -> None:
        _call()
        super()._upload(buffer, offset, source)

    def _download(self, buffer: NumpyBuffer, offset: int, target: memoryview) -> None:
        self._wait()
        super()._download(buffer, offset, target)

    def _read_async(self, buffer: NumpyBuffer, offset: int, nbytes: int) -> Callable[[memoryview], None]:
        copy, done_at = buffer.data[offset : offset + nbytes].copy(), self._idle_at

        def read(target: memoryview) -> None:
            self._until(lambda: time.perf_counter() >= done_at, "read")
            target[:] = copy.data

        return read

    def _wait(self) -> None:
        self._until(lambda: time.perf_counter() >= self._idle_at, "wait")

    def _effect(self, launch: Launch) -> None:
        effect = _EFFECTS.get(launch.kernel.spec.name)
        if effect is not None:
            effect(self, launch)

    def _embed(self, launch: Launch) -> None:
        """Add the duration of a step, of which this is the first launch."""
        rows = int(launch.kernel.spec.unpack(launch.params)["rows"])
        began = max(self._idle_at, time.perf_counter())
        self._idle_at = began + step_seconds(rows)
        self.steps.append(TimedStep(rows, began, self._idle_at))

    def _advance(self, launch: Launch) -> None:
        """Append a random token to each active row, and advance it as argmax_advance."""
        params = launch.kernel.spec.unpack(launch.params)
        ring, columns = int(params["ring"]), int(params["max_blocks"])
        tables = _words(launch, "tables").reshape(-1, columns)
        step = _words(launch, "step").reshape(-1, 4)
        history = _words(launch, "history").reshape(-1, ring + 1)
        rows = np.flatnonzero(step[: int(params["rows"]), 1] >= 0)
        tokens, positions = self._chosen(len(rows)), step[rows, 1] + 1
        history[rows, 0] += 1
        kept = history[rows, 0] <= ring
        history[rows[kept], history[rows, 0][kept]] = tokens[kept]
        blocks = tables[step[rows, 3], np.minimum(positions // KV_BLOCK, columns - 1)]
        active = (positions // KV_BLOCK < columns) & (blocks >= 0)
        step[rows, 0] = tokens
        step[rows, 1] = np.where(active, positions, -1)
        step[rows, 2] = np.where(active, blocks * KV_BLOCK + positions % KV_BLOCK, -1)

    def _list(self, launch: Launch) -> None:
        """Write random tokens and falling logits."""
        params = launch.kernel.spec.unpack(launch.params)
        rows, k = int(params["rows"]), int(params["k"])
        _words(launch, "ids")[: rows * k] = self._chosen(rows * k)
        values = np.arange(k, 0, -1, dtype=np.float32)
        _words(launch, "values")[: rows * k] = np.tile(values, rows).view(np.int32)
        _words(launch, "total")[: 2 * rows] = np.tile(np.array([k, k + 1], np.float32), rows).view(np.int32)

    def _chosen(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return self._random.integers(_TOKENS.start, _TOKENS.stop, count, dtype=np.int32)


_EFFECTS = {"embed_rows": TimedDevice._embed, "argmax_advance": TimedDevice._advance, "top_k": TimedDevice._list}


def _words(launch: Launch, binding: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Return the 32-bit words of a view."""
    names = [one.name for one in launch.kernel.spec.bindings]
    buffer, offset, nbytes = launch.bound[names.index(binding)]
    return buffer.data[offset : offset + nbytes // 4 * 4].view(np.int32)


def _call() -> None:
    """Give up the interpreter's lock, as every call of a driver does."""
    select([], [], [], 0)


def info() -> DeviceInfo:
    """Return the description of the device."""
    plain = numpy_info()
    return replace(
        plain,
        backend="timed",
        name="simulated GPU, no arithmetic",
        type=DeviceType.GPU,
        driver="none",
        total_memory=_MEMORY,
        kernels=plain.kernels | _FUSED,
        features=frozenset({"async-readback"}),
    )


class TimedBackend:
    """The backend of the simulated device."""

    name = "timed"
    api = (2, 1)

    def devices(self) -> Sequence[DeviceInfo]:
        """Return the description of the only device."""
        return [replace(info(), index=i) for i in range(8)]

    def open(self, index: int) -> Device:
        """Open the simulated device."""
        return TimedDevice(replace(info(), index=index))


@hookimpl
def bitnet_backend() -> TimedBackend:
    """Return the backend for discovery."""
    return TimedBackend()
