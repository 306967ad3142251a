"""Prepared launches on one device: compiled kernels are cached, and every dispatch is counted by kernel name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bitnet_core.hal.device import Device, Grid, Kernel, Recording, View
from bitnet_core.kernels.spec import KernelSpec


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel with everything it needs."""

    kernel: Kernel
    grid: Grid
    views: tuple[View, ...]
    params: bytes


@dataclass(frozen=True, slots=True)
class Recorded:
    """A device recording and what a replay of it dispatches."""

    recording: Recording
    launches: tuple[Launch, ...]
    counts: Counter[str]


class Launcher:
    """Compiles, dispatches and counts.

    counts: launches by kernel name since the device was opened, replayed ones included.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.counts: Counter[str] = Counter()
        self._kernels: dict[tuple[str, tuple[tuple[str, int], ...]], Kernel] = {}

    def prepare(
        self,
        spec: KernelSpec,
        params: Mapping[str, int | float],
        views: Sequence[View],
        constants: Mapping[str, int] | None = None,
    ) -> Launch:
        """Compile `spec` if needed, and fix its grid, views and parameters."""
        semantic = dict(constants or {})
        spec.check_constants(semantic)
        tuning = self.device.tuning(spec, semantic, params)
        merged = semantic | tuning
        key = spec.name, tuple(sorted(merged.items()))
        kernel = self._kernels.get(key)
        if kernel is None:
            kernel = self._kernels[key] = self.device.compile(spec, merged)
        return Launch(kernel, spec.grid(params, tuning), tuple(views), spec.pack(params))

    def run(self, launches: Iterable[Launch]) -> None:
        """Dispatch now."""
        for launch in launches:
            self.device.launch(launch.kernel, launch.grid, launch.views, launch.params)
            self.counts[launch.kernel.spec.name] += 1

    def record(self, launches: Sequence[Launch]) -> Recorded:
        """Keep launches for `replay`; nothing runs."""
        with self.device.record() as recording:
            for launch in launches:
                self.device.launch(launch.kernel, launch.grid, launch.views, launch.params)
        return Recorded(recording, tuple(launches), Counter(launch.kernel.spec.name for launch in launches))

    def replay(self, recorded: Recorded, times: int = 1) -> None:
        """Dispatch all launches of a recording, `times` times."""
        done = 0
        try:
            while done < times:
                self.device.replay(recorded.recording)
                done += 1
        finally:
            for name, count in recorded.counts.items():
                self.counts[name] += done * count
