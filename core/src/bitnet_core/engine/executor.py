"""A model on its devices: runs steps, recovers from lack of memory, and continues on another device if one is lost."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from bitnet_hal.device import ANY_ROWS, Device
from bitnet_hal.errors import DEVICE_FAILURES, DeviceLostError, GpuError, OutOfMemoryError, UsageError
from bitnet_hal.kernels.catalogue import KV_BLOCK
from bitnet_hal.rounding import ceil_div

from bitnet_core.engine.capacity import shared_concurrency, widest_chunk
from bitnet_core.engine.fit import FEWEST_BLOCKS
from bitnet_core.engine.offload import Offload
from bitnet_core.engine.recovery import OomRecovery
from bitnet_core.engine.run.model_runner import Runner
from bitnet_core.engine.run.request_groups import RequestGroups
from bitnet_core.engine.schedule.results import RequestOutput
from bitnet_core.engine.schedule.scheduler import Scheduler
from bitnet_core.engine.speculation.choice import Speculation, rows_that_pay
from bitnet_core.engine.speculation.drafter import Drafter
from bitnet_core.engine.worker import Worker, closed
from bitnet_core.model.source import ModelSource
from bitnet_core.options.engine import EngineOptions
from bitnet_core.plan.device_weights import DeviceWeights
from bitnet_core.plan.kernels import invariant_rows
from bitnet_core.progress import Progress

log = logging.getLogger(__name__)

T = TypeVar("T")

_SURE_TOKENS = 512
"""Tokens that every request can still generate after the cache was shrunk for lack of memory; longer answers may end
early."""

Reopen = Callable[[GpuError], Device | None]
"""Opens the next device in rank after one of DEVICE_FAILURES; returns None if there is none."""


class Executor:
    """A model on one device, which the executor owns, or on several.

    before: the devices of the earlier layers, with their numbers of layers; `device` has the last ones. source: stays
    open as long as the executor, because weights may view its file. helper: opens a CPU for offloaded layers.
    draft_model: loads the draft model, which the executor then owns. worker: everything on the devices in use.
    sequences: maximum number of concurrent requests. lock: held during every use of the devices.
    """

    def __init__(
        self,
        source: ModelSource,
        device: Device,
        options: EngineOptions | None = None,
        *,
        before: Sequence[tuple[Device, int]] = (),
        reopen: Reopen | None = None,
        helper: Callable[[], Device] | None = None,
        progress: Progress | None = None,
        draft_model: Callable[[], Drafter] | None = None,
    ) -> None:
        self.source = source
        self.options = options or EngineOptions()
        self.config = self.options.config_of(source.config)
        self._reopen = reopen
        self._progress = progress
        self.context = self.options.context_of(self.config)
        self.sequences = self.options.max_sequences
        chunk = max(self.options.prefill_chunk, self.sequences)
        self.scheduler = Scheduler(self.context, chunk, self.options.stream_interval, recurrent=bool(self.config.delta))
        self.lock = threading.RLock()
        self._counts: dict[str, Counter[str]] = {}
        self._moved = 0
        self._freed = False
        self._lost: GpuError | None = None  # the error that left the executor without a device
        self.speculation = Speculation(self.options, self.config, draft_model)
        self._offload = Offload(source, self.options, helper)
        try:
            self._use(device, before)
            self.speculation.check(device.info)
            self._guarded(self._ready)
            self.speculation.load(self.runner)
            self._speculate()
        except BaseException:
            self._offload.close()
            raise

    @property
    def device(self) -> Device:
        """The device in use."""
        return self.worker.device

    @property
    def weights(self) -> DeviceWeights:
        """The weights on the device in use."""
        return self.worker.weights

    @property
    def kernel_launches(self) -> Counter[str]:
        """Number of launches by kernel name since the engine was created, on all its devices."""
        return sum(self.kernel_launches_by_device.values(), Counter())

    @property
    def kernel_launches_by_device(self) -> dict[str, Counter[str]]:
        """kernel_launches of each device, by device request (such as "cuda:0")."""
        counts = dict(self._counts)
        for request, launches in self.worker.launches.items():
            counts[request] = counts.get(request, Counter()) + launches
        return counts

    @property
    def moved_bytes(self) -> int:
        """Bytes copied between host and devices by steps: step buffers, block tables, tokens and logits."""
        return self._moved + self.worker.moved_bytes

    def runner(self) -> Runner:
        """Return the runner of a model on one device. The caller must hold `lock`, or be the only user of the engine.

        Raises UsageError if the layers are on several devices.
        """
        runner = self._ready()
        if not isinstance(runner, Runner):
            raise UsageError("draft tokens are verified on one device, and the layers are on several")
        return runner

    def check_usable(self) -> None:
        """Raise UsageError after `close`, and DeviceLostError if the device was lost and no other took its place."""
        if self._freed:
            raise closed()
        if self._lost is not None:
            raise DeviceLostError(
                f"the model was lost with its device ({self._lost})",
                hint="Load it again, on this or another device",
            ) from self._lost

    def step(self) -> list[RequestOutput]:
        """Run one step of all requests; returns [] when there is nothing to do."""
        with self.lock:
            return self._guarded(self.scheduler.step)

    def free(self) -> None:
        """Free everything on the device, which stays open; may be called twice. The engine cannot compute
        afterwards."""
        self._freed = True
        self.worker.free()

    def close(self) -> None:
        """Free everything and close the device; may be called twice."""
        with self.lock:
            self.speculation.close()
            self.free()
            self.worker.close_devices()

    def _use(self, device: Device, before: Sequence[tuple[Device, int]] = ()) -> None:
        """Place the last layers on `device`, and the earlier ones on the devices of `before`, or offload them."""
        self._lost = None
        self._place(device, before or self._offload.first(device))

    def _place(self, device: Device, before: Sequence[tuple[Device, int]]) -> None:
        last = self.config.n_layers - sum(layers for _, layers in before)
        placed = [*before, (device, last)]
        if min(layers for _, layers in placed) < 1:
            raise UsageError(f"each device needs at least one layer, and the model has {self.config.n_layers}")
        chunk = self.scheduler.chunk
        self.scheduler.chunk = min(widest_chunk(self.config, used.info, chunk, self.sequences) for used, _ in placed)
        room = shared_concurrency(self.options, self.source, placed, self.sequences, self.scheduler.chunk)
        self.sequences = room.requests
        self.speculation.spares = room.spares
        self.speculation.devices = len(placed)
        self.scheduler.speculative.use(None, 0)
        self.worker = Worker(self.source, placed, self.options, self.scheduler, room)

    def _limit_rows(self) -> None:
        """Limit steps to the rows that the devices keep batch-invariant."""
        rows = ANY_ROWS
        for part in self.worker.parts:
            group_scales = part.weights.has_group_scales
            own = invariant_rows(self.config, part.device.info, group_scales=group_scales)
            part.launcher.tuned_rows = 0 if own == ANY_ROWS else own
            rows = min(rows, own)
        if rows < self.scheduler.chunk:
            log.info("deterministic: steps of at most %d rows on %s", rows, self.device.info.request)
            self.scheduler.chunk = rows
            self.sequences = min(self.sequences, rows)
            self.worker.sequences = self.sequences

    def _speculate(self) -> None:
        """Enable the drafter, for at most as many rows as the device keeps batch-invariant."""
        rows = self.speculation.rows(self.device.info, group_scales=self.weights.has_group_scales)
        rows = min(rows, self.scheduler.chunk, rows_that_pay(self.config, self.device.info, self.sequences))
        self.worker.verify_rows = rows
        self.scheduler.speculative.use(self.speculation.drafter if rows else None, rows)

    def _ready(self) -> Runner | RequestGroups:
        """Return the runner; creates it and loads the weights if needed."""
        self.check_usable()
        self.worker.load(self._progress)
        if self.options.deterministic:
            self._limit_rows()
        if not self.worker.ready:
            self._speculate()
        return self.worker.runner()

    def _guarded(self, action: Callable[[], T]) -> T:
        """Run an action on a loaded model, and retry it after recovery: free memory step by step, or continue on the
        next device."""
        self.check_usable()
        recovery: OomRecovery | None = None
        while True:
            try:
                if not self.worker.ready:
                    self._ready()
                return action()
            except OutOfMemoryError as exc:
                self.scheduler.errors.add(exc)
                if not self.worker.loaded:  # no cache or scratch exists that recovery could free
                    if not self.offload_more():
                        raise
                    continue
                recovery = recovery or OomRecovery(self)
                recovery.recover(exc)
            except DEVICE_FAILURES as exc:
                self.scheduler.errors.add(exc)
                self._move(exc)

    def _move(self, error: GpuError) -> None:
        """Continue on the next device, where running requests are recomputed. If there is none, raise `error` and keep
        the device unless it is lost."""
        info = self.device.info
        lost = isinstance(error, DeviceLostError)
        if lost:
            self._give_up_device()
        device = self._reopen(error) if self._reopen else None
        if device is None:
            self._lost = error if lost else None
            raise error
        if not lost:
            self._give_up_device()
        failure = "was lost" if lost else "failed"
        log.warning("%s %s (%s); continuing on %s", info.request, failure, error, device.info.request)
        self._counts = self.kernel_launches_by_device
        self._moved = self.moved_bytes
        self._use(device)

    def _give_up_device(self) -> None:
        self.scheduler.detach()
        self.worker.abandon()
        try:
            self.worker.close_devices()
        except GpuError as exc:
            log.debug("closing the device: %s", exc)

    # The steps of OomRecovery.

    def drop_scratch(self) -> bool:
        """Free prompt scratch and the pool's idle buffers; False if there were none."""
        return self.worker.drop_scratch()

    def shrink_cache(self) -> bool:
        """Halve the cache, down to the blocks that the present requests need; drops all reusable prefixes. False if it
        cannot be smaller."""
        per_sequence = [
            ceil_div(min(s.prompt_tokens + s.max_tokens, len(s.tokens) + _SURE_TOKENS, self.context), KV_BLOCK)
            for s in (*self.scheduler.running, *self.scheduler.waiting)
        ]
        floor = max(min(FEWEST_BLOCKS, ceil_div(self.context, KV_BLOCK)), *per_sequence, 0)
        blocks = max(self.worker.blocks // 2, floor)
        if blocks >= self.worker.blocks:
            return False
        self.worker.drop_runner()
        self.worker.blocks = blocks
        return True

    def halve_chunk(self) -> bool:
        """Halve the rows of a prompt step; False at 32 rows or the number of concurrent requests."""
        chunk = max(self.scheduler.chunk // 2, 32, self.sequences)
        if chunk >= self.scheduler.chunk:
            return False
        self.drop_scratch()
        self.scheduler.chunk = chunk
        return True

    def fewer_sequences(self) -> bool:
        """Halve the number of concurrent requests and of state checkpoints; False at one request without a
        checkpoint."""
        if self.sequences == 1 and not self.worker.checkpoints:
            return False
        self.worker.drop_runner()
        self.sequences = max(self.sequences // 2, 1)
        self.worker.sequences = self.sequences
        self.worker.checkpoints = self.worker.checkpoints // 2
        self.worker.spares = min(self.worker.spares, self.sequences)
        return True

    def offload_more(self) -> bool:
        """Move some more layers from a GPU to the CPU; False if the options or the device do not allow it."""
        before = self._offload.more(self.worker.parts)
        if not before:
            return False
        device = self.device
        self.worker.free()
        self._place(device, before)
        return True
