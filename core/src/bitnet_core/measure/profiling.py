"""Where the time of a step goes: the launches of an engine's recordings, timed by the device."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from bitnet_hal.device import Device, Recording, TimedDevice, View
from bitnet_hal.discovery.known import REPORT
from bitnet_hal.errors import GpuError, UsageError
from bitnet_hal.kernels.catalogue import STEP_FIELDS
from bitnet_hal.launcher import Launch

from bitnet_core.engine.engine import Engine

_LEAST_SHARE = 1000
"""A replay may take this many times what its launches take by the device's clock; a busy host makes it slower."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One launch, or all launches of a kernel in a step. nbytes: what its operands take, each counted once."""

    kernel: str
    launches: int
    seconds: float
    nbytes: int

    @property
    def bytes_per_second(self) -> float:
        """Memory traffic that the launches needed, over their time."""
        return self.nbytes / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class StepProfile:
    """The launches of one step, in order."""

    step: str
    launches: tuple[KernelTime, ...]

    @property
    def seconds(self) -> float:
        """Sum over the launches."""
        return sum(launch.seconds for launch in self.launches)

    def kernels(self) -> list[KernelTime]:
        """Summed by kernel, the longest first."""
        sums: dict[str, KernelTime] = {}
        for one in self.launches:
            old = sums.get(one.kernel, KernelTime(one.kernel, 0, 0.0, 0))
            sums[one.kernel] = KernelTime(
                one.kernel, old.launches + 1, old.seconds + one.seconds, old.nbytes + one.nbytes
            )
        return sorted(sums.values(), key=lambda kernel: -kernel.seconds)


def profile(engine: Engine) -> list[StepProfile]:
    """Replay each of the engine's recordings. UsageError where the device has no clock of its own, GpuError where that
    clock cannot be believed."""
    device = engine.device
    if "timings" not in device.info.features:
        raise UsageError(f"{device.info.request} does not time its launches")
    profiles = []
    for step, recorded in engine.recordings().items():
        moved = [_moved_bytes(device, launch) for launch in recorded.launches]  # a replay moves rows on
        timed = _timed(cast(TimedDevice, device), recorded.recording)
        times = [KernelTime(name, 1, s, nbytes) for (name, s), nbytes in zip(timed, moved, strict=True)]
        profiles.append(StepProfile(step, tuple(times)))
    return profiles


def _timed(device: TimedDevice, recording: Recording) -> Sequence[tuple[str, float]]:
    """What the device says, held against the clock on the wall."""
    device.synchronize()
    began = time.perf_counter()
    timed = device.timings(recording)
    called = time.perf_counter()
    device.replay(recording)
    device.synchronize()
    replayed, total = time.perf_counter() - called, sum(seconds for _, seconds in timed)
    if not replayed / _LEAST_SHARE < total <= called - began:
        raise GpuError(
            f"its clock cannot be believed: {len(timed)} launches that take {total:.3g} s by it take "
            f"{replayed:.3g} s by the host's",
            backend=device.info.backend,
            device=device.info.name,
            operation="timings",
            hint=f"Report this to the authors of the backend {REPORT}",
        )
    return timed


def _moved_bytes(device: Device, launch: Launch) -> int:
    """Bytes of a launch's operands; of caches and tables the rows that it uses."""
    spec = launch.kernel.spec
    params = spec.unpack(launch.params)
    views = {b.name: view for b, view in zip(spec.bindings, launch.views, strict=False)}  # a workspace comes last
    rows = int(params.get("rows", 1))  # of one row where a kernel has no such parameter
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
    """Cache positions that the rows look back on, those shared by rows of one sequence counted once."""
    values = np.empty((rows, STEP_FIELDS), np.int32)
    device.download(View(step.buffer, step.offset, values.nbytes), values.data.cast("B"))
    used = values[values[:, 1] >= 0]
    return sum(1 + int(used[used[:, 3] == sequence, 1].max()) for sequence in np.unique(used[:, 3]))


def chrome_trace(profiles: list[StepProfile]) -> Mapping[str, Any]:
    """The steps in the Trace Event Format that chrome://tracing and Perfetto open, a track each, times in us."""
    events: list[dict[str, Any]] = []
    for track, step in enumerate(profiles):
        events.append({"name": "thread_name", "ph": "M", "pid": 0, "tid": track, "args": {"name": step.step}})
        start = 0.0
        for one in step.launches:
            args = {"bytes": one.nbytes, "GB/s": round(one.bytes_per_second / 1e9, 1)}
            event = {"name": one.kernel, "ph": "X", "pid": 0, "tid": track, "ts": start, "dur": 1e6 * one.seconds}
            events.append(event | {"args": args})
            start += 1e6 * one.seconds
    return {"traceEvents": events, "displayTimeUnit": "ns"}
