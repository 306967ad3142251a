"""Rollback of delta net states after a step with rejected rows: saved before it, then advanced by the accepted rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from bitnet_hal.device import Buffer, Device, View, whole
from bitnet_hal.launcher import Launch, Launcher, RecordedLaunches

from bitnet_core.engine.kv_cache.cache import KVCache
from bitnet_core.engine.run.batch import ScheduledTokens, build_batch
from bitnet_core.plan.hybrid import HybridPlan
from bitnet_core.plan.kept_inputs import KeptInputs
from bitnet_core.plan.pool import MemoryPool
from bitnet_core.plan.scratch import Scratch
from bitnet_core.plan.state_copies import copied_rows, state_copies

_KEPT_RECORDINGS = 64
"""Number of recordings that are kept for reuse."""


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
        self._recordings: OrderedDict[tuple[str, int, int], RecordedLaunches] = OrderedDict()
        self._scheduled: list[ScheduledTokens] = []
        self._saved: dict[int, int] = {}  # req_index -> spare state that holds the state before the step
        self._size = 0
        self._rows: Buffer | None = None
        self._bindable = not any(view.nbytes % device.info.alignment for view in cache.states_of(0))
        self.inputs = KeptInputs(device, pool, plan.config, scratch.rows)
        try:
            rows = copied_rows(plan.config)
            self._rows = pool.alloc(rows.nbytes)
            device.upload(whole(self._rows).part(0, rows.nbytes), rows.data.cast("B"))
        except BaseException:
            self.free()
            raise

    def save(self, scheduled: Sequence[ScheduledTokens], size: int) -> None:
        """Save the states of the requests with several rows before a step of `size` rows, padding included. There may
        be at most as many such requests as spare states."""
        self._scheduled = list(scheduled)
        self._size = size
        several = [span.req_index for span in scheduled if len(span.tokens) > 1]
        self._saved = dict(zip(several, range(self._cache.spares)[: len(several)], strict=True))
        for req_index, spare in self._saved.items():
            self._copy("save", req_index, spare)

    def keep(self, rows: Mapping[int, int]) -> None:
        """Keep only the first rows[req_index] rows of each request; of requests that are not in `rows`, keep all."""
        step = build_batch(self._cache, self._scheduled, self._size)
        kept: list[int] = []
        place = 0
        for span in self._scheduled:
            end = place + len(span.tokens)
            wanted = rows.get(span.req_index, len(span.tokens))
            if wanted < len(span.tokens):
                self._copy("restore", span.req_index, self._saved[span.req_index])
                kept += range(place, place + wanted)
            place = end
        if not kept:
            return
        others = [row for row in range(self._size) if row not in kept]
        step[others, 1:3] = -1
        self._scratch.upload("step", step)
        self._run("repeat", self._size, 0)

    def free(self) -> None:
        """Free buffers and recordings."""
        while self._recordings:
            self._recordings.popitem()[1].recording.close()
        self.inputs.free()
        if self._rows is not None:
            self._pool.free(self._rows)

    def _copy(self, kind: str, req_index: int, spare: int) -> None:
        """Copy all states of a request to a spare (kind "save") or back, by one recording if the device can bind them
        all."""
        if self._bindable:
            self._run(kind, req_index, spare)
            return
        for source, target in zip(*self._copied(kind, req_index, spare), strict=True):
            self._device.copy(source, target)

    def _copied(self, kind: str, req_index: int, spare: int) -> tuple[list[View], list[View]]:
        """Return the views to copy from and those to copy to."""
        states = self._cache.states_of(req_index)
        spares = self._cache.spare_states(spare)
        return (states, spares) if kind == "save" else (spares, states)

    def _run(self, kind: str, first: int, second: int) -> None:
        """Replay the recording of a kind. first, second: req_index and spare, or the number of rows and 0."""
        key = (kind, first, second)
        recorded = self._recordings.pop(key, None)
        self._recordings[key] = recorded = recorded or self._launcher.record(self._launches(kind, first, second))
        self._launcher.replay(recorded)
        if len(self._recordings) > _KEPT_RECORDINGS:
            self._recordings.popitem(last=False)[1].recording.close()

    def _launches(self, kind: str, first: int, second: int) -> list[Launch]:
        if kind == "repeat":
            return self._plan.repeat(self._scratch, self._cache, first, self.inputs)
        assert self._rows is not None
        return state_copies(self._launcher, whole(self._rows), *self._copied(kind, first, second))
