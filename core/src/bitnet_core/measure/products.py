"""Time each matrix product of a decode step, and find the fastest of a device's tunings for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from bitnet_hal.device import Device, Kernel, Tuning
from bitnet_hal.errors import KernelCompileError, LaunchError, UnsupportedError
from bitnet_hal.features import TunableDevice
from bitnet_hal.kernels.params import PRODUCT
from bitnet_hal.launcher import Launch, Launcher, RecordedLaunches
from bitnet_hal.tuning.measured import tiling_key

from bitnet_core.engine.engine import Engine

_RUNS = 3
"""Number of measurements per tuning."""
_LONG = 2e-3
"""Approximate duration of a measurement in seconds."""
_LAUNCHES = 4
"""Number of launches per recording."""
_GAIN = 0.97
"""A tuning replaces the device's own choice if it takes less than this share of its time."""

Clock = Callable[[], float]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProductTime:
    """The times of one product of a decode step. seconds: with the best tuning; usual: with the device's own choice;
    tuning: the best one, None if it is the device's own choice; timed: every timed tuning with its seconds; left:
    number of tunings that were not timed before the deadline."""

    key: str  # measured.tiling_key
    launches: int  # in the step
    head: bool  # True if it runs once per step, False if once per layer
    seconds: float
    usual: float
    nbytes: int  # of the matrix
    tuning: Tuning | None
    timed: tuple[tuple[Tuning, float], ...] = ()
    left: int = 0


def time_products(engine: Engine, deadline: float, clock: Clock = time.perf_counter) -> list[ProductTime]:
    """Time every product of the recorded steps of an engine without requests, with all tunings of the device. After the
    deadline (a reading of `clock`) only the device's own choice is timed."""
    found: dict[str, list[Launch]] = {}
    for recorded in engine.recordings().values():
        for launch in recorded.launches:
            params = launch.kernel.spec.unpack(launch.params)
            if PRODUCT.issubset(params):
                key = tiling_key(launch.kernel.spec.name, _semantic(launch.kernel), params)
                found.setdefault(key, []).append(launch)
    timer = ProductTimer(engine.device, deadline, clock)
    return [timer.measure(key, launches, engine.config.vocab) for key, launches in found.items()]


def _semantic(kernel: Kernel) -> dict[str, int]:
    return {name: kernel.constants[name] for name in kernel.spec.constants}


class ProductTimer:
    """A timer of launches on a device with any tuning."""

    def __init__(self, device: Device, deadline: float, clock: Clock) -> None:
        self._device = device
        self._deadline = deadline
        self._clock = clock

    def measure(self, key: str, launches: Sequence[Launch], vocab: int) -> ProductTime:
        """Time a product by the first of its launches. vocab: rows of the head's matrix."""
        launch = launches[0]
        params = launch.kernel.spec.unpack(launch.params)
        own, *others = self._candidates(launch, params)
        times = [(self._seconds(launch, params, own), own)]
        left = 0
        for tuning in [*others, own] if others else []:  # its own choice again, after the others
            if self._clock() >= self._deadline:
                left += tuning is not own
                continue
            try:
                times.append((self._seconds(launch, params, tuning), tuning))
            except (KernelCompileError, LaunchError, UnsupportedError) as error:  # the others can still be measured
                log.info("%s with %s cannot be timed: %s", launch.kernel.spec.name, tuning, error)
        usual = min(seconds for seconds, tuning in times if tuning is own)
        best, tuning = min(times, key=lambda pair: pair[0])
        better = best < _GAIN * usual
        nbytes = max(view.nbytes for view in launch.views)
        head = params["outs"] == vocab
        best_seconds = best if better else usual
        timed = tuple((tried, seconds) for seconds, tried in times)
        winner = tuning if better else None
        return ProductTime(key, len(launches), head, best_seconds, usual, nbytes, winner, timed, left)

    def _candidates(self, launch: Launch, params: Mapping[str, int | float]) -> Sequence[Tuning]:
        """Return the tunings to try, the device's own choice first."""
        spec = launch.kernel.spec
        constants = _semantic(launch.kernel)
        if "tunings" in self._device.info.features:
            return cast(TunableDevice, self._device).tunings(spec, constants, params)
        return [self._device.tuning(spec, constants, params)]

    def _seconds(self, launch: Launch, params: Mapping[str, int | float], tuning: Tuning) -> float:
        spec = launch.kernel.spec
        constants = _semantic(launch.kernel)
        launcher = Launcher(self._device)
        if "tunings" in self._device.info.features:
            launcher.tilings = {tiling_key(spec.name, constants, params): tuning}
        try:
            again = launcher.prepare(spec, params, launch.views[: len(spec.bindings)], constants)
            recorded = launcher.record([again] * _LAUNCHES)
            try:
                once = self._replays(launcher, recorded, 1)
                times = max(1, int(_LONG / once))
                return min(self._replays(launcher, recorded, times) for _ in range(_RUNS)) / (times * _LAUNCHES)
            finally:
                recorded.recording.close()
        finally:
            launcher.release()

    def _replays(self, launcher: Launcher, recorded: RecordedLaunches, times: int) -> float:
        began = self._clock()
        launcher.replay(recorded, times)
        self._device.synchronize()
        return max(self._clock() - began, 1e-9)
