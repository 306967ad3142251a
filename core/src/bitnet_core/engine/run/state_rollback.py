"""Rollback of delta net states after a step with rejected rows: saved before it, then advanced by the accepted rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bitnet_hal.device import Buffer, Device, View
from bitnet_hal.launcher import Launch, Launcher, RecordedLaunches

from bitnet_core.engine.kv_cache.cache import KVCache
from bitnet_core.engine.run.batch import ScheduledTokens, build_batch
from bitnet_core.plan.hybrid import HybridPlan
from bitnet_core.plan.kept_inputs import KeptInputs
from bitnet_core.plan.pool import MemoryPool
from bitnet_core.plan.scratch import Scratch
from bitnet_core.plan.state_copies import copied_rows, copied_rows_bytes, state_copies


class StateRollback:
    """The rollback of one step in `scratch` at a time. inputs: buffers to which the step writes the inputs of delta
    nets."""

    def __init__(
        self, device: Device, launcher: Launcher, pool: MemoryPool, plan: HybridPlan, scratch: Scratch, cache: KVCache
    ) -> None:
        self._device = device
        self._launcher = launcher
        self._pool = pool
        self._plan = plan
        self._scratch = scratch
        self._cache = cache
        self._recordings: dict[tuple[str, int], RecordedLaunches] = {}
        self._scheduled: list[ScheduledTokens] = []
        self._saved: dict[int, int] = {}  # req_index -> spare state that holds the state before the step
        self._size = 0
        self._listed: dict[str, list[int]] = {}  # the sources that the step buffers of the copies list, by kind
        self._buffers: list[Buffer] = []
        self.inputs = KeptInputs(device, pool, plan.config, scratch.rows)
        try:
            self._steps = {"save": self._alloc_steps(cache.spares), "restore": self._alloc_steps(cache.sequences)}
        except BaseException:
            self.free()
            raise

    def save(self, scheduled: Sequence[ScheduledTokens], size: int) -> None:
        """Save the states of the requests with several rows before a step of `size` rows, padding included. There may
        be at most as many such requests as spare states."""
        self._scheduled = list(scheduled)
        self._size = size
        several = [span.req_index for span in scheduled if len(span.tokens) > 1]
        spares = self._cache.spares
        self._saved = dict(zip(several, range(spares)[: len(several)], strict=True))
        if several:
            self._copy("save", several + [-1] * (spares - len(several)))

    def keep(self, rows: Mapping[int, int]) -> None:
        """Keep only the first rows[req_index] rows of each request; of requests that are not in `rows`, keep all."""
        kept: set[int] = set()
        restored = [-1] * self._cache.sequences
        place = 0
        for span in self._scheduled:
            wanted = rows.get(span.req_index, len(span.tokens))
            if wanted < len(span.tokens):
                restored[span.req_index] = self._saved[span.req_index]
                kept.update(range(place, place + wanted))
            place += len(span.tokens)
        if not kept:
            return
        self._copy("restore", restored)
        step = build_batch(self._cache, self._scheduled, self._size)
        others = [row for row in range(self._size) if row not in kept]
        step[others, 1:3] = -1
        self._scratch.upload("step", step)
        self._run("repeat", self._size)

    def free(self) -> None:
        """Free buffers and recordings."""
        for recorded in self._recordings.values():
            recorded.recording.close()
        self._recordings.clear()
        self.inputs.free()
        for buffer in self._buffers:
            self._pool.free(buffer)
        self._buffers.clear()

    def _alloc_steps(self, states: int) -> list[View]:
        """Allocate the step buffers of copies to `states` states."""
        views: list[View] = []
        for nbytes in copied_rows_bytes(self._plan.config, states):
            self._buffers.append(self._pool.alloc(nbytes))
            views.append(View(self._buffers[-1], 0, nbytes))
        return views

    def _copy(self, kind: str, sources: list[int]) -> None:
        """Copy states of all delta nets, to the spares (kind "save") or back. sources: as in copied_rows."""
        if self._listed.get(kind) != sources:
            self._listed.pop(kind, None)  # before the upload, which may fail
            for view, step in zip(self._steps[kind], copied_rows(self._plan.config, sources), strict=True):
                self._device.upload(view, step.data.cast("B"))
            self._listed[kind] = sources
        self._run(kind, len(sources))

    def _run(self, kind: str, size: int) -> None:
        """Replay the recording of a kind. size: number of target states, or of rows."""
        recorded = self._recordings.get((kind, size))
        if recorded is None:
            recorded = self._recordings[kind, size] = self._launcher.record(self._launches(kind, size))
        self._launcher.replay(recorded)

    def _launches(self, kind: str, size: int) -> list[Launch]:
        if kind == "repeat":
            return self._plan.repeat(self._scratch, self._cache, size, self.inputs)
        states, spares = self._cache.states, self._cache.spare_states
        sources, targets = (states, spares) if kind == "save" else (spares, states)
        return state_copies(self._launcher, self._plan.config, self._steps[kind], sources, targets)
