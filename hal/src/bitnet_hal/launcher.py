"""Launcher of one device: it caches compiled kernels and counts every dispatch by kernel name."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from bitnet_hal.device import Buffer, Device, Kernel, Recording, Tuning, View, whole
from bitnet_hal.errors import KernelCompileError, UnsupportedError
from bitnet_hal.features import AheadCompilingDevice, InvariantDevice, RepeatingDevice, TunableDevice
from bitnet_hal.kernels.params import PRODUCT
from bitnet_hal.kernels.spec import KernelSpec
from bitnet_hal.kernels.types import Grid
from bitnet_hal.launches import CompiledKernel
from bitnet_hal.tuning.measured import tiling_key

log = logging.getLogger(__name__)


_MOST_PREPARED = 1024
"""Maximum cached (kernel, parameters) pairs. All layers share the ten or so of a step, so the cache halves the time to
queue a prompt of a new length."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch ready for dispatch: compiled kernel, grid, views and packed parameters."""

    kernel: Kernel
    grid: Grid
    views: tuple[View, ...]
    params: bytes


@dataclass(frozen=True, slots=True)
class RecordedLaunches:
    """A device's recording, its launches and their number by kernel name."""

    recording: Recording
    launches: tuple[Launch, ...]
    counts: Counter[str]


@dataclass(frozen=True, slots=True)
class PreparedKernel:
    """A compiled kernel and the workspace that all its launches share, None if it needs none."""

    kernel: Kernel
    workspace: Buffer | None


class Launcher:
    """Compiles, dispatches and counts kernels.

    counts: launches by kernel name since the device was opened, replays included.
    workspace_bytes: device memory of the kernels' workspaces.
    tuned_rows: the number of rows up to which a row must have the same bits in all launches. These use the tuning of
    this number of rows, and so run the same program, or that of `InvariantDevice`. 0: each launch has the tuning of
    its own rows.
    """

    def __init__(self, device: Device, tilings: Mapping[str, Tuning] | None = None) -> None:
        self.device = device
        self._replay_many = cast(RepeatingDevice, device).replay_many if "replay-many" in device.info.features else None
        self.counts: Counter[str] = Counter()
        self.workspace_bytes = 0
        self._compiled: dict[tuple[object, ...], PreparedKernel] = {}
        self._prepared: dict[tuple[object, ...], tuple[PreparedKernel, Grid, bytes]] = {}
        self._tilings: Mapping[str, Tuning] = tilings or {}
        self.tuned_rows = 0
        self._announcing = False

    @contextmanager
    def announcing(self) -> Iterator[None]:
        """Only start to compile the kernels that are prepared meanwhile: the launches cannot run. The device must have
        the feature "compile-ahead"."""
        own, self._prepared, self._announcing = self._prepared, {}, True
        try:
            yield
        finally:
            self._prepared, self._announcing = own, False

    @property
    def tilings(self) -> Mapping[str, Tuning]:
        """Measured tunings of matrix products by `tiling_key` (`tuning.measured.tilings`), preferred to the device's
        own choice."""
        return self._tilings

    @tilings.setter
    def tilings(self, tilings: Mapping[str, Tuning]) -> None:
        self._tilings = tilings
        self._prepared.clear()

    def prepare(
        self,
        spec: KernelSpec,
        params: Mapping[str, int | float],
        views: Sequence[View],
        constants: Mapping[str, int] | None = None,
    ) -> Launch:
        """Compile `spec` if needed and return the launch. Raises UnsupportedError if the device does not offer it."""
        own = constants or {}
        key = (spec.name, self.tuned_rows, *params.items(), *own.items())
        prepared = self._prepared.get(key)
        if prepared is None:
            if len(self._prepared) >= _MOST_PREPARED:
                self._prepared.clear()
            prepared = self._prepared[key] = *self.compiled(spec, params, own), spec.pack(params)
        compiled, grid, packed = prepared
        bound = (*views, whole(compiled.workspace)) if compiled.workspace else tuple(views)
        return Launch(compiled.kernel, grid, bound, packed)

    def compiled(
        self, spec: KernelSpec, params: Mapping[str, int | float], constants: Mapping[str, int]
    ) -> tuple[PreparedKernel, Grid]:
        """Return the kernel with the tuning chosen for these parameters, and the grid."""
        spec.check_constants(constants)
        tuning = self._tuning(spec, params, constants)
        spec.check_tile(tuning.tile)
        grid = spec.grid(params, tuning.tile)
        self._check_grid(spec, grid)
        return self._compile(spec, constants, tuning), grid

    def _tuning(self, spec: KernelSpec, params: Mapping[str, int | float], constants: Mapping[str, int]) -> Tuning:
        invariant = 0 < int(params.get("rows", 0)) <= self.tuned_rows
        if invariant and "invariant-tunings" in self.device.info.features:
            return cast(InvariantDevice, self.device).invariant_tuning(spec, constants, params)
        tuned = {**params, "rows": self.tuned_rows} if invariant else params
        return self._measured(spec, constants, tuned) or self.device.tuning(spec, constants, tuned)

    def _measured(
        self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]
    ) -> Tuning | None:
        """Return the fastest tuning found by `bitnet tune`, None if unknown or no longer offered by the device."""
        if not self.tilings or not PRODUCT.issubset(params):
            return None
        best = self.tilings.get(tiling_key(spec.name, constants, params))
        offered = cast(TunableDevice, self.device).tunings(spec, constants, params) if best else ()
        return next((tuning for tuning in offered if best and tuning.key == best.key), None)

    def _check_grid(self, spec: KernelSpec, grid: Grid) -> None:
        info = self.device.info
        if any(limit and size > limit for size, limit in zip(grid, info.max_grid, strict=True)):
            raise UnsupportedError(
                f"{spec.name} needs the grid {grid}, which exceeds the device's maximum {info.max_grid}",
                backend=info.backend,
                device=info.name,
                operation="launch",
            )

    def _compile(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> PreparedKernel:
        key = (spec.name, *sorted(constants.items()), tuning.key)
        compiled = self._compiled.get(key)
        if compiled is None and self._announcing:
            cast(AheadCompilingDevice, self.device).compile_ahead(spec, constants, tuning)
            return PreparedKernel(CompiledKernel(spec, constants, tuning), None)
        if compiled is None:
            kernel = self._built(spec, constants, tuning)
            workspace = self.device.alloc(tuning.workspace) if tuning.workspace else None
            compiled = self._compiled[key] = PreparedKernel(kernel, workspace)
            self.workspace_bytes += tuning.workspace
        return compiled

    def _built(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> Kernel:
        try:
            return self.device.compile(spec, constants, tuning)
        except KernelCompileError as error:
            log.debug("%s with %s and %s does not compile:\n%s", spec.name, dict(constants), tuning, error.log)
            raise

    def release(self) -> None:
        """Free every kernel and workspace; launches prepared with them can no longer run."""
        for compiled in self._compiled.values():
            self.device.release(compiled.kernel)
            if compiled.workspace:
                self.device.free(compiled.workspace)
        self._compiled.clear()
        self._prepared.clear()
        self.workspace_bytes = 0

    def run(self, launches: Iterable[Launch]) -> None:
        """Dispatch launches immediately, in order."""
        for launch in launches:
            self.device.launch(launch.kernel, launch.grid, launch.views, launch.params)
            self.counts[launch.kernel.spec.name] += 1

    def record(self, launches: Sequence[Launch]) -> RecordedLaunches:
        """Record launches for `replay` without running them."""
        with self.device.record() as recording:
            for launch in launches:
                self.device.launch(launch.kernel, launch.grid, launch.views, launch.params)
        return RecordedLaunches(recording, tuple(launches), Counter(launch.kernel.spec.name for launch in launches))

    def replay(self, recorded: RecordedLaunches, times: int = 1) -> None:
        """Replay a recording `times` times."""
        if self._replay_many is not None:
            self._replay_many(recorded.recording, times)
        else:
            for _ in range(times):
                self.device.replay(recorded.recording)
        for name, count in recorded.counts.items():
            self.counts[name] += times * count
