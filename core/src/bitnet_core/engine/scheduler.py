"""Which rows run in the next step: admission, chunked prompts, bursts of greedy tokens, preemption.

A step either mixes prompt chunks with one row of every decoding sequence, or, when no prompt is pending, replays a
recorded decode step (Orca's iteration-level scheduling, Yu et al. 2022, with the preemption of PagedAttention). What
goes wrong while a token is chosen belongs to its sequence: it ends, and its neighbours go on.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

from bitnet_hal.errors import UsageError

from bitnet_core.engine.blocks import BlockPool
from bitnet_core.engine.booking import Booking, Update, snapshot_at
from bitnet_core.engine.choosing import Row, in_order, settle_all
from bitnet_core.engine.counters import zeros
from bitnet_core.engine.greedy import Greedy, last_rows
from bitnet_core.engine.history import ErrorHistory
from bitnet_core.engine.places import Places
from bitnet_core.engine.runner import Runner
from bitnet_core.engine.sequence import FinishReason, Sequence
from bitnet_core.engine.spans import Span

_SHARED_ROWS = 1024
"""Most rows of a step in which texts go on: they wait for all of it."""

_SCORED_ROWS = 64
"""Rows of one text in a step whose logits are all wanted: they must fit in host memory beside the model."""


class Scheduler:
    """Runs sequences on a runner. After an error of the device nothing has changed and a step can be tried again.

    burst_seconds: as in Pace. waiting, running: the sequences. counts: COUNTERS; of evictions those of block pools
    that are gone. seconds: of steps with prompts ("prefill") and without ("decode").
    errors: what ended texts, and what the engine adds. recurrent: layers keep states, which stand for a whole text:
    others can begin with its blocks where there is a snapshot, and a step that failed may have moved them on.
    """

    def __init__(self, context: int, chunk: int, burst_seconds: float = 0.1, *, recurrent: bool = False) -> None:
        self.recurrent = recurrent
        self.context, self.chunk = context, chunk
        self.counts = zeros()
        self.errors = ErrorHistory()
        self._places = Places(context, self.counts, recurrent=recurrent)
        self.waiting, self.running = self._places.waiting, self._places.running
        self._booking = Booking(self._places, self.counts, self.errors)
        self.seconds = self._booking.seconds
        self.greedy = Greedy(self._places, self._booking, self.counts, burst_seconds)
        self._ended: list[Update] = []  # texts that ended without a step of their own

    def attach(self, runner: Runner, blocks: BlockPool) -> None:
        """Use a new runner and empty cache; running sequences wait, and compute their tokens again."""
        self._runner = runner
        self._places.attach(runner.cache, blocks)

    def detach(self) -> None:
        """Forget runner and cache."""
        self._places.detach()

    @property
    def limit(self) -> int:
        """Most tokens of one sequence, prompt included."""
        return self._places.limit

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
        queued = self.greedy.queued(self._runner)
        if not queued:  # what is on its way comes first
            self._admit()
        done: list[Update] = []
        if self.running:
            taking_part = [(sequence, sequence.generated_tokens == 0) for sequence in self.running]
            began = time.perf_counter()
            try:
                done = self._advance(queued)
            except Exception:
                self._start_over()
                raise
            self._booking.time(taking_part, time.perf_counter() - began, done)
        updates, self._ended = self._ended + done, []
        return updates

    def _advance(self, queued: int) -> list[Update]:
        if any(sequence.pending > 1 or sequence.scored for sequence in self.running):
            return self._mixed()
        if all(sequence.greedy for sequence in self.running):
            return self.greedy.step(self._runner, queued, self.chunk)
        return self._sampled()

    def _start_over(self) -> None:
        """States that a step may have moved on are of no use: all texts compute their tokens again."""
        for sequence in self.running[::-1] if self.recurrent else []:
            self._places.preempt(sequence)

    def fail_all(self, error: Exception) -> list[Update]:
        """End every text with an error that is nobody's own."""
        updates = [self._booking.fail(sequence, error) for sequence in (*self.running, *self.waiting)]
        updates, self._ended = self._ended + updates, []
        return updates

    def finish(self, sequence: Sequence, reason: FinishReason = "cancelled") -> None:
        """End a sequence now; its full blocks stay for others to reuse."""
        self._places.finish(sequence, reason)

    def borrowed(self, tokens: int) -> AbstractContextManager[int]:
        """See Places."""
        return self._places.borrowed(tokens)

    def _admit(self) -> None:
        before = len(self.running)
        self._ended += [Update(sequence, ()) for sequence in self._places.admit()]
        if len(self.running) > before:
            self.greedy.restart(self._runner)

    def _mixed(self) -> list[Update]:
        """A row of every decoding sequence, then as much of the prompts as the chunk has room for."""
        self._places.reserve(1)
        spans: list[Span] = []
        numbers: dict[Row, int] = {}
        taken: list[tuple[Sequence, int, list[Row]]] = []
        used, going_on = 0, sum(sequence.pending == 1 for sequence in self.running)
        chunk = min(self.chunk, max(_SHARED_ROWS, going_on)) if going_on else self.chunk
        for sequence in sorted(self.running, key=lambda s: s.pending > 1):
            count = min(sequence.pending, chunk - used, _SCORED_ROWS if sequence.scored else chunk)
            start = sequence.computed
            if self.recurrent and start < (end := snapshot_at(sequence)):
                count = min(count, end - start)
            spans.append(Span(sequence.lane, start, tuple(sequence.tokens[start : start + count])))
            rows = _rows_of(sequence, count)
            numbers.update({row: used + count - len(rows) + at for at, row in enumerate(rows)})
            taken.append((sequence, count, rows))
            used += count
        ordered, wants = in_order(list(numbers))
        steps = self._runner.prompt_step(spans, [numbers[row] for row in ordered], wants, self.chunk)
        for row, scores in zip(ordered, steps, strict=True):
            row.settle(scores)
        return [self._booking.take(sequence, count, rows) for sequence, count, rows in taken]

    def _sampled(self) -> list[Update]:
        """One token each."""
        self._places.reserve(1)
        rows, wants = in_order([Row(sequence) for sequence in self.running])
        settle_all(rows, self._runner.decode_step(last_rows(row.sequence for row in rows), wants))
        return [self._booking.take(row.sequence, 1, [row]) for row in rows]


def _rows_of(sequence: Sequence, count: int) -> list[Row]:
    """Those of its next `count` rows whose logits matter: the last of all, and every one that is to be scored."""
    done = 0 < count == sequence.pending
    chooses = done and sequence.max_tokens > 0
    if sequence.scored:
        at = sequence.computed
        return [Row(sequence, at + n, chooses and n == count - 1) for n in range(count)]
    return [Row(sequence)] if chooses else []
