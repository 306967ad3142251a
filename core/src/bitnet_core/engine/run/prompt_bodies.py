"""Execution of prompt steps on one device: scratch buffers, and recordings of repeated row counts."""

from __future__ import annotations

from collections import OrderedDict

from bitnet_hal.device import Device
from bitnet_hal.launcher import Launch, Launcher, RecordedLaunches

from bitnet_core.engine.kv_cache.cache import KVCache
from bitnet_core.plan.layers import Plan
from bitnet_core.plan.pool import MemoryPool
from bitnet_core.plan.scratch import Scratch, logit_rows

_KEPT_SHAPES = 40
"""Number of prompt row counts whose launches are kept for reuse: those of `batch.prompt_sizes` and some others."""


class PromptBodies:
    """A runner of the layers of one device for prompt steps."""

    def __init__(self, device: Device, launcher: Launcher, pool: MemoryPool, plan: Plan, cache: KVCache) -> None:
        self._device = device
        self._launcher = launcher
        self._pool = pool
        self._plan = plan
        self._cache = cache
        self._scratch: Scratch | None = None
        self._bodies: OrderedDict[int, list[Launch] | RecordedLaunches] = OrderedDict()

    def scratch(self, rows: int, chunk: int) -> Scratch:
        """Return scratch buffers for `rows` <= chunk rows; their size grows by powers of two, so that short prompts
        take little memory."""
        if self._scratch is None or self._scratch.rows < rows:
            self.drop()
            config = self._plan.config
            capacity = min(chunk, 1 << (rows - 1).bit_length())
            wanted = 0 if config.layers_after else logit_rows(config, capacity)
            self._scratch = Scratch(self._device, self._pool, config, capacity, wanted)
        return self._scratch

    def run(self, scratch: Scratch, rows: int) -> None:
        """Run all layers of a step: by direct launches the first time, by a recording if the row count repeats."""
        body = self._bodies.pop(rows, None)
        if body is None:
            if not self._bodies:
                self._compile_together(scratch, rows)
            body = self._plan.body(scratch, self._cache, rows)
            self._launcher.run(body)
        else:
            if not isinstance(body, RecordedLaunches):
                body = self._launcher.record(body)
            self._launcher.replay(body)
        self._keep(rows, body)

    def _compile_together(self, scratch: Scratch, rows: int) -> None:
        """Let the kernels of the first step compile at the same time, if the device can."""
        if "compile-ahead" in self._device.info.features:
            with self._launcher.announcing():
                self._plan.body(scratch, self._cache, rows)

    def _keep(self, rows: int, body: list[Launch] | RecordedLaunches) -> None:
        self._bodies[rows] = body
        if len(self._bodies) > _KEPT_SHAPES:
            _close(self._bodies.popitem(last=False)[1])

    def record(self, scratch: Scratch, rows: int) -> None:
        """Record all layers of a step of this row count without running them."""
        body = self._bodies.pop(rows, None) or self._plan.body(scratch, self._cache, rows)
        self._keep(rows, body if isinstance(body, RecordedLaunches) else self._launcher.record(body))

    def recordings(self) -> dict[int, RecordedLaunches]:
        """Return the recordings by number of rows."""
        return {rows: body for rows, body in self._bodies.items() if isinstance(body, RecordedLaunches)}

    def drop(self) -> bool:
        """Free the scratch buffers and recordings; False if there are none."""
        if self._scratch is None:
            return False
        while self._bodies:
            _close(self._bodies.popitem()[1])
        self._scratch.free()
        self._scratch = None
        return True


def _close(body: list[Launch] | RecordedLaunches) -> None:
    if isinstance(body, RecordedLaunches):
        body.recording.close()
