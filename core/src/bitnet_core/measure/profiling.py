"""Profile steps: the launches of an engine's recordings, timed by the device's clock."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
from bitnet_hal.device import Device, Recording, View
from bitnet_hal.discovery.known import REPORT
from bitnet_hal.errors import GpuError, UsageError
from bitnet_hal.features import TimedDevice
from bitnet_hal.kernels.catalogue import STEP_FIELDS
from bitnet_hal.launcher import Launch

from bitnet_core.engine.engine import Engine
from bitnet_core.measure.hardware_report import HardwareReport

_LEAST_SHARE = 1000
"""Maximum ratio of a replay's duration to the sum of its launches; a busy host delays replays."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The time of one launch, or of all launches of a kernel in a step. nbytes: bytes of its operands, each counted
    once.

    least, most: seconds of the shortest and of the longest launch.
    """

    kernel: str
    launches: int
    seconds: float
    nbytes: int
    least: float
    most: float

    @property
    def mean(self) -> float:
        """Mean seconds of a launch."""
        return self.seconds / self.launches

    @property
    def bytes_per_second(self) -> float:
        """Bytes of the operands per second."""
        return self.nbytes / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class StepProfile:
    """The launches of one step, in order."""

    step: str
    launches: tuple[KernelTime, ...]

    @property
    def seconds(self) -> float:
        """Sum of the seconds of all launches."""
        return sum(launch.seconds for launch in self.launches)

    def kernels(self) -> list[KernelTime]:
        """Return the sums by kernel, the longest first."""
        sums: dict[str, KernelTime] = {}
        for one in self.launches:
            old = sums.get(one.kernel)
            sums[one.kernel] = one if old is None else _joined(old, one)
        return sorted(sums.values(), key=lambda kernel: -kernel.seconds)


def _joined(one: KernelTime, other: KernelTime) -> KernelTime:
    return KernelTime(
        one.kernel,
        one.launches + other.launches,
        one.seconds + other.seconds,
        one.nbytes + other.nbytes,
        min(one.least, other.least),
        max(one.most, other.most),
    )


def profile(engine: Engine) -> list[StepProfile]:
    """Replay and time each of the engine's recordings. If layers are on several devices, only the last device is
    timed, and the steps' names say so. Raises UsageError if the device cannot time launches, and GpuError if its clock
    is wrong."""
    device = engine.device
    if "timings" not in device.info.features:
        raise UsageError(f"{device.info.request} cannot time its launches")
    layers = engine.worker.parts[-1].config.n_layers
    split = len(engine.worker.parts) > 1
    where = f", {layers} of {engine.config.n_layers} layers on {device.info.request}" if split else ""
    profiles = []
    for step, recorded in engine.recordings().items():
        moved = [
            _moved_bytes(device, launch) for launch in recorded.launches
        ]  # counted before the replay, which advances the rows
        timed = _timed(cast(TimedDevice, device), recorded.recording)
        times = [KernelTime(name, 1, s, nbytes, s, s) for (name, s), nbytes in zip(timed, moved, strict=True)]
        profiles.append(StepProfile(step + where, tuple(times)))
    return profiles


def _timed(device: TimedDevice, recording: Recording) -> Sequence[tuple[str, float]]:
    """Return the device's timings, checked against the host's clock."""
    device.synchronize()
    began = time.perf_counter()
    timed = device.timings(recording)
    called = time.perf_counter()
    device.replay(recording)
    device.synchronize()
    replayed = time.perf_counter() - called
    total = sum(seconds for _, seconds in timed)
    if not replayed / _LEAST_SHARE < total <= called - began:
        raise GpuError(
            f"its clock is wrong: {len(timed)} launches take {total:.3g} s by the device's clock and "
            f"{replayed:.3g} s by the host's",
            backend=device.info.backend,
            device=device.info.name,
            operation="timings",
            hint=f"Report this to the authors of the backend {REPORT}",
        )
    return timed


def _moved_bytes(device: Device, launch: Launch) -> int:
    """Return the bytes of a launch's operands, counting only the used rows of caches and tables."""
    spec = launch.kernel.spec
    params = spec.unpack(launch.params)
    views = {b.name: view for b, view in zip(spec.bindings, launch.views, strict=False)}  # a workspace comes last
    rows = int(params.get("rows", 1))  # kernels without this parameter work on one row
    total = 0
    for name, view in views.items():
        if name in ("k_cache", "v_cache"):
            per_position = int(params["n_kv_heads"]) * int(params["row_bytes"])
            total += per_position * (_positions(device, views["step"], rows) if "tables" in views else rows)
        elif name == "table":
            total += view.nbytes // int(params["count"]) * rows
        elif name == "rope":
            total += 4 * int(params["head_dim"]) * rows
        else:
            total += view.nbytes
    return total


def _positions(device: Device, step: View, rows: int) -> int:
    """Return the number of cache positions that the rows attend to; rows of one request share theirs."""
    values = np.empty((rows, STEP_FIELDS), np.int32)
    device.download(View(step.buffer, step.offset, values.nbytes), values.data.cast("B"))
    used = values[values[:, 1] >= 0]
    return sum(1 + int(used[used[:, 3] == table_row, 1].max()) for table_row in np.unique(used[:, 3]))


def chrome_trace(profiles: list[StepProfile], report: HardwareReport) -> Mapping[str, Any]:
    """Return the steps in the Trace Event Format of chrome://tracing and Perfetto: one track per step, times in us.

    The report of the hardware is in the trace's otherData.
    """
    events: list[dict[str, Any]] = []
    for track, step in enumerate(profiles):
        events.append({"name": "thread_name", "ph": "M", "pid": 0, "tid": track, "args": {"name": step.step}})
        start = 0.0
        for one in step.launches:
            args = {"bytes": one.nbytes, "GB/s": round(one.bytes_per_second / 1e9, 1)}
            event = {"name": one.kernel, "ph": "X", "pid": 0, "tid": track, "ts": start, "dur": 1e6 * one.seconds}
            events.append(event | {"args": args})
            start += 1e6 * one.seconds
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": asdict(report)}
