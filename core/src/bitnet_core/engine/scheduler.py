"""Which rows run in the next step: admission, chunked prompts, bursts of greedy tokens, preemption.

A step either mixes prompt chunks with one row of every decoding sequence, or, when no prompt is pending, replays a
recorded decode step (Orca's iteration-level scheduling, Yu et al. 2022, with the preemption of PagedAttention).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bitnet_core.engine.blocks import BlockPool
from bitnet_core.engine.cache import KVCache
from bitnet_core.engine.runner import Runner, Span
from bitnet_core.engine.sequence import FinishReason, Sequence
from bitnet_core.errors import UsageError
from bitnet_core.kernels.catalogue import KV_BLOCK, ceil_div

log = logging.getLogger(__name__)

_MAX_BURST = 16
"""Greedy tokens made before the host looks; bursts grow to this so that the first tokens come at once."""

_BURST_SECONDS = 0.1
"""A burst grows no further once it takes this long, so that text keeps flowing on slow devices."""


@dataclass(frozen=True, slots=True)
class Update:
    """What a step gave one sequence; sequence.finish_reason tells whether it is done."""

    sequence: Sequence
    tokens: tuple[int, ...]


class Scheduler:
    """Runs sequences on a runner. After an error of the device nothing has changed and a step can be tried again."""

    def __init__(self, context: int, chunk: int) -> None:
        self.context, self.chunk = context, chunk
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0
        self._burst = 1

    def attach(self, runner: Runner, blocks: BlockPool) -> None:
        """Use a new runner and empty cache; running sequences wait, and compute their tokens again."""
        self._runner, self._blocks = runner, blocks
        self._cache: KVCache = runner.cache
        self._lanes = list(range(self._cache.sequences - 1, -1, -1))

    def detach(self) -> None:
        """Forget runner and cache."""
        for sequence in reversed(self.running):
            sequence.blocks, sequence.lane, sequence.computed = [], -1, 0
            self.waiting.appendleft(sequence)
        self.running.clear()

    @property
    def limit(self) -> int:
        """Most tokens of one sequence, prompt included: the context, or what the cache holds."""
        return min(self.context, self._cache.blocks * KV_BLOCK)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. UsageError if the prompt is empty or leaves no room for a token."""
        if not sequence.tokens:
            raise UsageError("the prompt is empty")
        if len(sequence.tokens) >= self.limit:
            raise UsageError(
                f"the prompt has {len(sequence.tokens)} tokens, but the context holds {self.limit} with the answer"
            )
        self.waiting.append(sequence)

    def step(self) -> list[Update]:
        """Do one step; empty when nothing is left to do."""
        self._admit()
        if not self.running:
            return []
        if any(sequence.pending > 1 for sequence in self.running):
            return self._mixed()
        if all(sequence.sampler.params.greedy for sequence in self.running):
            return self._greedy()
        return self._sampled()

    def finish(self, sequence: Sequence, reason: FinishReason = "cancelled") -> None:
        """End a sequence now; its full blocks stay for others to reuse."""
        sequence.finish_reason = sequence.finish_reason or reason
        if sequence in self.running:
            self.running.remove(sequence)
            self._release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    @contextmanager
    def borrowed(self, tokens: int) -> Iterator[int]:
        """A lane with blocks for `tokens` <= limit positions, for use outside the queue; sequences step back for it."""
        if not self._lanes:
            self._preempt(self.running[-1])
        blocks: list[int] = []
        while len(blocks) < ceil_div(tokens, KV_BLOCK):
            block = self._blocks.take()
            if block is None:
                self._preempt(self.running[-1])
            else:
                blocks.append(block)
        lane = self._lanes.pop()
        self._cache.set_table(lane, blocks)
        try:
            yield lane
        finally:
            self._lanes.append(lane)
            self._blocks.release(blocks)

    def _admit(self) -> None:
        while self.waiting and self._lanes:
            sequence = self.waiting[0]
            known = self._blocks.match(sequence.digests(len(sequence.tokens) - 1))
            needed = ceil_div(len(sequence.tokens) + 1, KV_BLOCK) - len(known)
            if needed > self._blocks.available:
                self._blocks.release(known)
                if self.running:
                    return
                self._give_up(self.waiting.popleft())
                continue
            self.waiting.popleft()
            sequence.blocks, sequence.lane = known, self._lanes.pop()
            sequence.computed = sequence.reused = len(known) * KV_BLOCK
            self.running.append(sequence)
            self._burst = 1
            self._grow(sequence, len(sequence.tokens) + 1)

    def _give_up(self, sequence: Sequence) -> None:
        """End a sequence that has outgrown the cache of a device that took over from a lost one."""
        log.warning("a text of %d tokens ends: the cache holds %d", len(sequence.tokens), self.limit)
        sequence.finish_reason = "length"

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        """Own blocks for the first `tokens` positions; False if the cache is full."""
        while len(sequence.blocks) < ceil_div(tokens, KV_BLOCK):
            block = self._blocks.take()
            if block is None:
                return False
            sequence.blocks.append(block)
        self._cache.set_table(sequence.lane, sequence.blocks)
        return True

    def _reserve(self, extra: int) -> None:
        """Room for `extra` more tokens in every running sequence; the last one steps back where there is none."""
        for sequence in list(self.running):
            while sequence in self.running:
                if self._grow(sequence, min(len(sequence.tokens) + extra, self.limit)):
                    break
                self._preempt(self.running[-1])

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        sequence.computed = 0
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def _release(self, sequence: Sequence) -> None:
        self._blocks.release(sequence.blocks)
        self._lanes.append(sequence.lane)
        sequence.blocks, sequence.lane = [], -1

    def _mixed(self) -> list[Update]:
        """A row of every decoding sequence, then as much of the prompts as the chunk has room for."""
        self._reserve(1)
        spans: list[Span] = []
        rows = 0
        wanted: list[int] = []
        counts: list[tuple[Sequence, int]] = []
        for sequence in sorted(self.running, key=lambda s: s.pending > 1):
            count = min(sequence.pending, self.chunk - rows)
            start = sequence.computed
            spans.append(Span(sequence.lane, start, tuple(sequence.tokens[start : start + count])))
            rows += count
            if count and count == sequence.pending:
                wanted.append(rows - 1)
            counts.append((sequence, count))
        logits = self._runner.forward(spans, wanted, self.chunk)
        chosen = iter(logits)
        updates = []
        for sequence, count in counts:
            done = count > 0 and count == sequence.pending
            tokens = [sequence.sampler.choose(next(chosen), sequence.tokens)] if done else []
            updates.append(self._accept(sequence, count, tokens))
        return updates

    def _greedy(self) -> list[Update]:
        left = min(min(s.max_tokens - s.generated_tokens, self.limit - len(s.tokens)) for s in self.running)
        count = max(1, min(self._burst, left))
        self._reserve(count)
        began = time.perf_counter()
        tokens = self._runner.decode_greedy(self._last_rows(), count)
        took = time.perf_counter() - began
        if took < _BURST_SECONDS:
            self._burst = min(2 * self._burst, _MAX_BURST)
        elif took > 2 * _BURST_SECONDS:
            self._burst = max(1, self._burst // 2)
        return [self._accept(s, count, row.tolist()) for s, row in zip(list(self.running), tokens, strict=True)]

    def _sampled(self) -> list[Update]:
        self._reserve(1)
        running, rows = list(self.running), self._last_rows()
        shortest = min(sequence.sampler.params.shortlist for sequence in running)
        if shortest and self._runner.shortlists:
            k = max(sequence.sampler.params.shortlist for sequence in running)
            ids, values = self._runner.decode_shortlist(rows, k)
            chosen = [s.sampler.choose_short(i, v) for s, i, v in zip(running, ids, values, strict=True)]
        else:
            logits = self._runner.decode_logits(rows)
            chosen = [s.sampler.choose(row, s.tokens) for s, row in zip(running, logits, strict=True)]
        return [self._accept(s, 1, [token]) for s, token in zip(running, chosen, strict=True)]

    def _last_rows(self) -> list[Span]:
        return [Span(s.lane, s.computed, (s.tokens[s.computed],)) for s in self.running]

    def _accept(self, sequence: Sequence, count: int, tokens: list[int]) -> Update:
        """Book `count` computed rows and the tokens they gave, up to where the sequence ends."""
        before = sequence.computed
        accepted: list[int] = []
        for token in tokens:
            if token in sequence.stop_ids:
                sequence.finish_reason = "stop"
                break
            accepted.append(token)
            sequence.tokens.append(token)
            if sequence.generated_tokens >= sequence.max_tokens or len(sequence.tokens) >= self.limit:
                sequence.finish_reason = "length"
                break
        sequence.computed = min(before + count, len(sequence.tokens))
        digests = sequence.digests(sequence.computed)
        for index in range(before // KV_BLOCK, len(digests)):
            self._blocks.register(sequence.blocks[index], digests[index])
        if sequence.finish_reason:
            self.finish(sequence)
        return Update(sequence, tuple(accepted))
