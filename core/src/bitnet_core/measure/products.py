"""The products of a decode step, one at a time: what each takes, and which of a device's tunings is the quickest."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from bitnet_hal.device import Device, Kernel, TunableDevice, Tuning
from bitnet_hal.launcher import Launch, Launcher, RecordedLaunches
from bitnet_hal.tuning.measured import PRODUCT, tiling_key

from bitnet_core.engine.engine import Engine

_RUNS, _LONG = 3, 2e-3
"""Measurements of a tuning, and about how many seconds each takes."""
_LAUNCHES = 4
"""In a recording."""
_GAIN = 0.97
"""A tuning must take less than this part of the device's own choice to replace it."""

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class ProductTime:
    """One product of a decode step. seconds: with the best tuning; usual: with the device's own; tuning: the best one,
    None where that is the device's own."""

    key: str  # measured.tiling_key
    launches: int  # in the step
    head: bool  # once a step, not once a layer
    seconds: float
    usual: float
    nbytes: int  # of the matrix
    tuning: Tuning | None


def time_products(engine: Engine, deadline: float, clock: Clock = time.perf_counter) -> list[ProductTime]:
    """Time every product of the engine's recorded steps, which has nothing else to do, with all tunings on offer; after
    the deadline (of the clock) with the device's own alone."""
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
    """Times launches on a device, with tunings other than their own too."""

    def __init__(self, device: Device, deadline: float, clock: Clock) -> None:
        self._device, self._deadline, self._clock = device, deadline, clock

    def measure(self, key: str, launches: Sequence[Launch], vocab: int) -> ProductTime:
        """Time one of these launches of one product. vocab: rows of the head's matrix."""
        launch = launches[0]
        params = launch.kernel.spec.unpack(launch.params)
        offered = self._offered(launch, params)
        times = [(self._seconds(launch, params, tuning), tuning) for tuning in offered[:1]]
        for tuning in [*offered[1:], *offered[:1]] if len(offered) > 1 else []:  # the usual one again, after the others
            if self._clock() < self._deadline:
                times.append((self._seconds(launch, params, tuning), tuning))
        usual = min(seconds for seconds, tuning in times if tuning is offered[0])
        best, tuning = min(times, key=lambda pair: pair[0])
        better = best < _GAIN * usual
        nbytes = max(view.nbytes for view in launch.views)
        head = params["outs"] == vocab
        return ProductTime(
            key, len(launches), head, best if better else usual, usual, nbytes, tuning if better else None
        )

    def _offered(self, launch: Launch, params: Mapping[str, int | float]) -> Sequence[Tuning]:
        """The device's own choice first."""
        spec, constants = launch.kernel.spec, _semantic(launch.kernel)
        if "tunings" in self._device.info.features:
            return cast(TunableDevice, self._device).tunings(spec, constants, params)
        return [self._device.tuning(spec, constants, params)]

    def _seconds(self, launch: Launch, params: Mapping[str, int | float], tuning: Tuning) -> float:
        spec, constants = launch.kernel.spec, _semantic(launch.kernel)
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
