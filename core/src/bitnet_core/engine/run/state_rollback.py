"""States of delta nets in steps whose rows may be rejected: saved before the step, and advanced by accepted rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bitnet_hal.launcher import Launcher, RecordedLaunches

from bitnet_core.engine.kv_cache.cache import KVCache
from bitnet_core.engine.run.batch import ScheduledTokens, build_batch
from bitnet_core.plan.scratch import Scratch


class StateRollback:
    """The rollback of one step at a time. recorded(n): returns the recording of HybridPlan.repeat for a step of n rows
    in `scratch`."""

    def __init__(
        self, launcher: Launcher, scratch: Scratch, cache: KVCache, recorded: Callable[[int], RecordedLaunches]
    ) -> None:
        self._launcher = launcher
        self._scratch = scratch
        self._cache = cache
        self._recorded = recorded
        self._scheduled: list[ScheduledTokens] = []
        self._saved: dict[int, int] = {}  # req_index -> row of the cache with the states before the step
        self._size = 0

    def save(self, scheduled: Sequence[ScheduledTokens], size: int) -> None:
        """Copy the states of the requests with several rows before a step of `size` rows, padding included. At most as
        many requests as the cache has spare rows."""
        self._scheduled = list(scheduled)
        self._size = size
        first = self._cache.sequences + self._cache.checkpoints
        spares = range(first, first + self._cache.spares)
        several = [span.req_index for span in scheduled if len(span.tokens) > 1]
        self._saved = dict(zip(several, spares[: len(several)], strict=True))
        for req_index, spare in self._saved.items():
            self._cache.copy_states(req_index, spare)

    def keep(self, rows: Mapping[int, int]) -> None:
        """Take back the rows of the step after the first rows[req_index] of each request; of requests without a number
        all are kept."""
        step = build_batch(self._cache, self._scheduled, self._size)
        kept: list[int] = []
        place = 0
        for span in self._scheduled:
            end = place + len(span.tokens)
            wanted = rows.get(span.req_index, len(span.tokens))
            if wanted < len(span.tokens):
                self._cache.copy_states(self._saved[span.req_index], span.req_index)
                kept += range(place, place + wanted)
            place = end
        if not kept:
            return
        others = [row for row in range(self._size) if row not in kept]
        step[others, 1:3] = -1
        self._scratch.upload("step", step)
        self._launcher.replay(self._recorded(self._size))
