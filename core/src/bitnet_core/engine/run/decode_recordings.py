"""The recordings of decode steps: one for each kind of step and number of rows."""

from __future__ import annotations

from bitnet_hal.launcher import Launch, Launcher, RecordedLaunches

from bitnet_core.engine.kv_cache.cache import KVCache
from bitnet_core.plan.kept_inputs import KeptInputs
from bitnet_core.plan.layers import Plan
from bitnet_core.plan.scratch import Scratch

VERIFY = "verify "
"""Prefix of the kind of a step in which a request may have several rows."""


class DecodeRecordings:
    """The recordings of decode steps on the buffers `scratch`, made when they are first needed.

    A kind is "logits", "greedy", or "top" followed by the length of the lists; after VERIFY for a step in which a
    request may have several rows. kept: buffers for the inputs of delta nets in such a step.
    """

    def __init__(
        self, launcher: Launcher, plan: Plan, scratch: Scratch, cache: KVCache, kept: KeptInputs | None
    ) -> None:
        self._launcher = launcher
        self._plan = plan
        self._scratch = scratch
        self._cache = cache
        self._kept = kept
        self._recordings: dict[tuple[str, int], RecordedLaunches] = {}

    def get(self, kind: str, size: int) -> RecordedLaunches:
        """Return the recording of a step of `size` rows."""
        recorded = self._recordings.get((kind, size))
        if recorded is None:
            recorded = self._recordings[kind, size] = self._launcher.record(self._step(kind, size))
        return recorded

    def compile_ahead(self, kind: str, size: int) -> None:
        """Start to compile the kernels of a step, on a device with the feature "compile-ahead"."""
        with self._launcher.announcing():
            self._step(kind, size)

    def named(self) -> dict[str, RecordedLaunches]:
        """Return all recordings by name."""
        return {f"{kind} decode, {size} rows": recorded for (kind, size), recorded in self._recordings.items()}

    def close(self) -> None:
        """Free all recordings."""
        for recorded in self._recordings.values():
            recorded.recording.close()
        self._recordings.clear()

    def _step(self, kind: str, size: int) -> list[Launch]:
        choice = kind.removeprefix(VERIFY)
        verifies = choice != kind
        kept = self._kept if verifies else None
        launches = self._plan.body(self._scratch, self._cache, size, decode=not verifies, kept=kept)
        keep = 0 if choice == "logits" else 1 if choice == "greedy" else int(choice.removeprefix("top"))
        launches += self._plan.head(self._scratch, size, size, keep)
        if choice == "greedy":
            launches.append(self._plan.advance(self._scratch, self._cache, size))
        elif keep:
            launches.append(self._plan.shortlist(self._scratch, size, keep))
        return launches
