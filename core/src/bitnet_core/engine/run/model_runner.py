"""Run steps on a device: prompts by launches, decoding by replaying one recording per padded row count."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from threading import Lock

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import Device, DeviceType
from bitnet_hal.kernels.catalogue import STEP_FIELDS
from bitnet_hal.launcher import Launcher, RecordedLaunches

from bitnet_core.engine.kv_cache.cache import KVCache
from bitnet_core.engine.run.batch import (
    ScheduledTokens,
    build_batch,
    padded_prompt,
    padded_rows,
    prompt_sizes,
    unused_rows,
    verified_rows,
)
from bitnet_core.engine.run.decode_recordings import VERIFY, DecodeRecordings
from bitnet_core.engine.run.earlier_layers import EarlierLayers
from bitnet_core.engine.run.logits_reader import LogitsReader
from bitnet_core.engine.run.multi_step_decoder import MultiStepDecoder
from bitnet_core.engine.run.prediction_head import Placed, PredictionHead
from bitnet_core.engine.run.prompt_bodies import PromptBodies
from bitnet_core.engine.run.split_steps import SplitSteps
from bitnet_core.engine.run.state_rollback import StateRollback
from bitnet_core.engine.sampling.logits import LogitsRequest, TopLogits
from bitnet_core.plan.device_weights import DeviceWeights
from bitnet_core.plan.hybrid import HybridPlan
from bitnet_core.plan.kinds import plan_class
from bitnet_core.plan.pool import MemoryPool
from bitnet_core.plan.prediction import PredictionPlan
from bitnet_core.plan.scratch import Scratch, logit_rows


class Runner:
    """Device state of an engine: scratch buffers, recordings, multi-step decoding. fused: as in Plan. verify_rows:
    maximum rows of `verify_step`. chunk: as in PredictionHead. decodes_apart: True if prompts and decoding requests
    take less time in separate steps than in one.

    earlier: the layers before those of this device, on other devices; without draft tokens. rows: maximum rows of a
    decode step (default: one per sequence of the cache). lock: held by the caller of every method, and released while
    earlier layers run.
    """

    def __init__(
        self,
        device: Device,
        launcher: Launcher,
        pool: MemoryPool,
        weights: DeviceWeights,
        cache: KVCache,
        kv_cache_type: str,
        *,
        fused: bool = True,
        verify_rows: int = 0,
        chunk: int = 0,
        earlier: Sequence[EarlierLayers] = (),
        rows: int | None = None,
        lock: Lock | None = None,
    ) -> None:
        self.decodes_apart = self._pads_prompts = device.info.type is DeviceType.GPU and not earlier
        self.lock = lock
        self.device = device
        self.launcher = launcher
        self.pool = pool
        self.weights = weights
        self.cache = cache
        self.plan = plan_class(weights.config)(weights, launcher, kv_cache_type, fused=fused)
        self.vocab = weights.config.vocab
        self.tokens = weights.config.tokens
        self._logits = LogitsReader(device, launcher, self.plan)
        self._most_rows = rows or cache.sequences
        rows = max(self._most_rows, verify_rows)
        self._rollback: StateRollback | None = None
        self._prediction: PredictionHead | None = None
        self._decode = Scratch(device, pool, weights.config, rows, rows)
        try:
            self._decode.upload("index", np.arange(rows, dtype=np.int32))
            if isinstance(self.plan, HybridPlan):
                self._prepare_speculation(self.plan, verify_rows, chunk)
        except BaseException:
            self._free_buffers()
            raise
        self._split = SplitSteps(earlier, launcher, self._decode, lock) if earlier else None
        self.direct = self._split is not None and self._split.direct
        self._prompts = PromptBodies(device, launcher, pool, self.plan, cache)
        kept = self._rollback.inputs if self._rollback else None
        self._recordings = DecodeRecordings(launcher, self.plan, self._decode, cache, kept)
        self.multi_step = self._multi_step_decoder(cache)
        self._verified: list[ScheduledTokens] = []

    def _multi_step_decoder(self, cache: KVCache) -> MultiStepDecoder:
        """Return the decoder for several greedy steps per read. With earlier layers on devices that are not peers it
        waits for each step."""
        return MultiStepDecoder(
            self.device,
            self._decode,
            self._most_rows,
            cache,
            partial(self._recordings.get, "greedy"),
            self._replay_greedy if self._split else self.launcher.replay,
            run_ahead=self.direct or self._split is None,
            changed=self._split.forget if self._split else None,
        )

    def _prepare_speculation(self, plan: HybridPlan, verify_rows: int, chunk: int) -> None:
        """Create the state rollback of delta nets and the prediction head, if the model has them."""
        if verify_rows:
            self._rollback = StateRollback(self.device, self.launcher, self.pool, plan, self._decode, self.cache)
        if self.weights.prediction:
            own = PredictionPlan(plan, self.weights.prediction)
            self._prediction = PredictionHead(self.device, self.launcher, self.pool, own, self.cache, chunk)

    def forward(
        self, scheduled: Sequence[ScheduledTokens], wanted: Sequence[int], chunk: int
    ) -> npt.NDArray[np.float32]:
        """Compute the rows of `scheduled`, at most `chunk`; returns f32[len(wanted), V], the logits of the rows
        numbered `wanted`."""
        steps = self.prompt_step(scheduled, wanted, [LogitsRequest(0)] * len(wanted), chunk, self.vocab)
        rows = [top_logits.full() for top_logits in steps]
        return np.stack(rows) if rows else np.empty((0, self.vocab), np.float32)

    def prompt_step(
        self,
        scheduled: Sequence[ScheduledTokens],
        wanted: Sequence[int],
        logits_requests: Sequence[LogitsRequest],
        chunk: int,
        columns: int = 0,
    ) -> Iterator[TopLogits]:
        """Compute the rows of `scheduled`, at most `chunk`, and yield the TopLogits of each row numbered in `wanted`,
        as `logits_requests` (in the order of sample_rows.order_rows) asks. columns: number of logits of a full row
        (default: those of tokens that exist). Each TopLogits is valid until the next one."""
        scratch, rows = self._run_prompt(scheduled, chunk)
        self._follow(scratch, rows, scheduled)
        return self._heads(scratch, rows, wanted, logits_requests, columns or self.tokens)

    def reads_later(self, wanted: int) -> bool:
        """Return whether `queue_prompts` takes steps with this number of rows in `wanted`."""
        fits = wanted <= logit_rows(self.weights.config, wanted)
        return self.decodes_apart and fits and self._logits.reads_later(wanted)

    def queue_prompts(
        self,
        scheduled: Sequence[ScheduledTokens],
        wanted: Sequence[int],
        logits_requests: Sequence[LogitsRequest],
        chunk: int,
    ) -> Callable[[], list[TopLogits]]:
        """Queue a prompt_step for whose wanted rows top-k lists suffice, at most as many as `reads_later` allows.
        Returns a function that waits for the lists; further work may be queued before it is called."""
        scratch, rows = self._run_prompt(scheduled, chunk)
        self._follow(scratch, rows, scheduled)
        k = self._logits.list_length(logits_requests)
        scratch.upload("index", np.asarray(wanted, np.int32))
        head = self.plan.head(scratch, rows, len(wanted), k)
        self.launcher.run([*head, self.plan.shortlist(scratch, len(wanted), k)])
        return self._logits.lists_later(scratch, logits_requests, k, self.tokens)

    def hidden_step(
        self, scheduled: Sequence[ScheduledTokens], wanted: Sequence[int], chunk: int
    ) -> npt.NDArray[np.float32]:
        """Compute the rows of `scheduled`, at most `chunk`; returns f32[len(wanted), H], the normed last hidden states
        of the rows numbered `wanted`."""
        scratch, rows = self._run_prompt(scheduled, chunk)
        hidden = np.empty((len(wanted), self.weights.config.hidden), np.float32)
        for start in range(0, len(wanted), scratch.wanted):
            part = hidden[start : start + scratch.wanted]
            scratch.upload("index", np.asarray(wanted[start : start + len(part)], np.int32))
            self.launcher.run([self.plan.hidden(scratch, rows, len(part))])
            scratch.download("normed", part)
        return hidden

    def _run_prompt(self, scheduled: Sequence[ScheduledTokens], chunk: int) -> tuple[Scratch, int]:
        """Run all layers over the rows of `scheduled`; returns their buffers and the row count, padding included."""
        rows = sum(len(span.tokens) for span in scheduled)
        if self._pads_prompts:
            rows = padded_prompt(rows, chunk)
        scratch = self._prompts.scratch(rows, chunk)
        self.cache.upload_tables()
        step = build_batch(self.cache, scheduled, rows)
        scratch.upload("step", step)
        if self._split:
            scratch.upload("x", self._split.prompt(step, chunk))
        self._prompts.run(scratch, rows)
        return scratch, rows

    def compile_ahead(self, sizes: Sequence[int]) -> None:
        """Start to compile the kernels of greedy steps that decode each of `sizes` requests, if the device can compile
        in other threads."""
        if "compile-ahead" in self.device.info.features:
            for size in sizes:
                self._recordings.compile_ahead("greedy", size)

    def compile_prompts_ahead(self, chunk: int, ends: Sequence[int]) -> None:
        """Start to compile the kernels of the usual prompt steps of at most `chunk` rows, and of the first tokens of
        each of `ends` prompts, if the device can compile in other threads."""
        if "compile-ahead" in self.device.info.features:
            k = self._logits.list_length([LogitsRequest(1)])
            scratch = self._prompts.scratch(chunk, chunk)
            with self.launcher.announcing():
                for rows in self.prompt_sizes(chunk):
                    self.plan.body(scratch, self.cache, rows)
                for count in ends:
                    self.plan.head(scratch, count, count, k)

    def prompt_sizes(self, chunk: int) -> list[int]:
        """Return the usual row counts of prompt steps of at most `chunk` rows; [] if they are not padded."""
        return prompt_sizes(chunk) if self._pads_prompts else []

    def record_prompt(self, rows: int, chunk: int) -> float:
        """Compile and record the layers of prompt steps of `rows` <= chunk rows, by running inactive rows; returns the
        seconds of such a step."""
        scratch = self._prompts.scratch(chunk, chunk)  # at full size, because growing it discards recordings
        scratch.upload("step", unused_rows(rows))
        self._prompts.record(scratch, rows)
        self.device.synchronize()
        began = time.perf_counter()
        self._prompts.run(scratch, rows)
        self.device.synchronize()
        return time.perf_counter() - began

    def _heads(
        self, scratch: Scratch, rows: int, wanted: Sequence[int], logits_requests: Sequence[LogitsRequest], columns: int
    ) -> Iterator[TopLogits]:
        for start in range(0, len(wanted), scratch.wanted):
            part = slice(start, start + scratch.wanted)
            index = np.asarray(wanted[part], np.int32)
            scratch.upload("index", index)
            keep = self._logits.list_length(logits_requests[part])
            self.launcher.run(self.plan.head(scratch, rows, len(index), keep))
            yield from self._logits.read(scratch, logits_requests[part], columns)

    def decode_step(self, rows: Sequence[ScheduledTokens], logits_requests: Sequence[LogitsRequest]) -> list[TopLogits]:
        """Run one decode step; returns the TopLogits of each row, as `logits_requests` (in the order of
        sample_rows.order_rows) asks."""
        size = padded_rows(len(rows), self._most_rows)
        k = self._logits.list_length(logits_requests)
        self._replay_uploaded(f"top{k}" if k else "logits", rows, size)
        self._follow(self._decode, size, rows)
        if k:
            return self._logits.lists(self._decode, logits_requests, k, self.tokens, size)
        return self._logits.read(self._decode, logits_requests, self.tokens)

    def verify_step(
        self, scheduled: Sequence[ScheduledTokens], logits_requests: Sequence[LogitsRequest]
    ) -> list[TopLogits]:
        """Run one step in which a request may have several rows, at most verify_rows in all; returns the TopLogits of
        each row, as `logits_requests` (in the order of sample_rows.order_rows) asks."""
        k = self._logits.list_length(logits_requests)
        size = self._verify(f"top{k}" if k else "logits", scheduled)
        if k:
            return self._logits.lists(self._decode, logits_requests, k, self.tokens, size)
        return self._logits.read(self._decode, logits_requests, self.tokens)

    def queue_greedy(self, scheduled: Sequence[ScheduledTokens]) -> Callable[[], list[int]]:
        """Queue a step as verify_step. The returned function waits for the greedy token of each row, -1 if NaN or Inf
        is among its logits. The device chooses them, so that only the step buffer is read."""
        size = self._verify("greedy", scheduled)
        step = np.empty((size, STEP_FIELDS), np.int32)
        read = self._logits.reader(self._decode.view("step", size))

        def wait() -> list[int]:
            read(step.data.cast("B"))
            self.pool.moved_bytes += step.nbytes
            tokens: list[int] = step[:, 0].tolist()
            return tokens

        return wait

    def _verify(self, kind: str, scheduled: Sequence[ScheduledTokens]) -> int:
        """Queue a step with draft tokens; returns its rows, padding included."""
        size = min(verified_rows(sum(len(span.tokens) for span in scheduled)), self._decode.rows)
        self._verified = list(scheduled)
        if self._rollback:
            self._rollback.save(scheduled, size)
        self._replay_uploaded(VERIFY + kind, scheduled, size)
        return size

    def keep_rows(self, rows: Mapping[int, int]) -> None:
        """Keep only the first rows[req_index] rows of each request of the last verify_step: roll its delta net states
        back. Rejected keys and values are overwritten later. Requests that are not in `rows` have ended."""
        if self._rollback:
            self._rollback.keep(rows)
        if self._prediction is None:
            return
        placed: list[Placed] = []
        place = 0
        for span in self._verified:
            if kept := rows.get(span.req_index, 0):
                placed.append((place, span._replace(tokens=span.tokens[:kept])))
            place += len(span.tokens)
        if placed:
            self._prediction.follow(self._decode.view("x", place), placed)

    def draft(self, texts: Mapping[int, Sequence[int]], limits: Mapping[int, int]) -> dict[int, list[int]]:
        """Return draft tokens of the prediction head, as PredictionHead.draft."""
        if self._prediction is None:
            return {}
        for req_index, tokens in texts.items():
            at = len(tokens) - 1
            place = self.multi_step.place(ScheduledTokens(req_index, at, (tokens[at],)))
            if place is not None:
                row = ScheduledTokens(req_index, at - 1, (tokens[at - 1],))
                self._prediction.follow(self._decode.view("x", self._decode.rows), [(place, row)])
        return self._prediction.draft(texts, limits)

    def _follow(self, scratch: Scratch, rows: int, scheduled: Sequence[ScheduledTokens]) -> None:
        """Pass the hidden rows of a step to the prediction head."""
        if self._prediction is None:
            return
        placed: list[Placed] = []
        place = 0
        for span in scheduled:
            placed.append((place, span))
            place += len(span.tokens)
        self._prediction.follow(scratch.view("x", rows), placed)

    def recordings(self) -> dict[str, RecordedLaunches]:
        """Return all recordings by name. Replaying one advances its rows, so there may be no requests then."""
        self.multi_step.forget()
        return self._recordings.named() | {
            f"prompt, {rows} rows": body for rows, body in self._prompts.recordings().items()
        }

    def drop_scratch(self) -> bool:
        """Free the buffers that only prompts need; False if there were none."""
        dropped = self._split is not None and self._split.drop_scratch()
        return self._prompts.drop() or dropped

    def free(self) -> None:
        """Free scratch, recordings and the cache, but not the weights."""
        self._recordings.close()
        self.drop_scratch()
        self._free_buffers()
        if self._split:
            self._split.free()
        for cache in (self.cache, *self.cache.others):
            cache.free()

    def _free_buffers(self) -> None:
        self._decode.free()
        if self._rollback:
            self._rollback.free()
        if self._prediction:
            self._prediction.free()

    def _replay_greedy(self, recorded: RecordedLaunches, times: int) -> None:
        """Run a recorded step of a split model several times."""
        assert self._split is not None
        self._split.replay_greedy(recorded, times, self.multi_step.size)

    def _replay_uploaded(self, kind: str, rows: Sequence[ScheduledTokens], size: int) -> None:
        """Upload `rows` and replay a recorded step of `size` rows."""
        recorded = self._recordings.get(kind, size)
        self.multi_step.forget()
        self.cache.upload_tables()
        self._decode.upload("step", build_batch(self.cache, rows, size))
        if self._split:
            self._split.replay(recorded, size)
        else:
            self.launcher.replay(recorded)
