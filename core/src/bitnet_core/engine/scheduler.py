"""Which rows run in the next step: admission, chunked prompts, bursts of greedy tokens, preemption.

A step either mixes prompt chunks with one row of every decoding sequence, or, when no prompt is pending, replays a
recorded decode step (Orca's iteration-level scheduling, Yu et al. 2022, with the preemption of PagedAttention). What
goes wrong while a token is chosen belongs to its sequence: it ends, and its neighbours go on.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bitnet_core.engine.blocks import BlockPool
from bitnet_core.engine.cache import KVCache
from bitnet_core.engine.choosing import Row, in_order
from bitnet_core.engine.history import ErrorHistory
from bitnet_core.engine.lookup import GUESSES, Payoff
from bitnet_core.engine.runner import Runner, Span
from bitnet_core.engine.sampling import not_a_number
from bitnet_core.engine.sequence import FinishReason, Sequence
from bitnet_core.engine.snapshots import Snapshots
from bitnet_core.errors import UsageError
from bitnet_core.kernels.catalogue import KV_BLOCK, ceil_div
from bitnet_core.plan.small_head import Choice

log = logging.getLogger(__name__)

_MAX_BURST = 32
"""Greedy tokens made before the host looks; bursts grow to this so that the first tokens come at once."""

_LOOKING = 16
"""Fewer tokens than these in a burst's time, and a look at each costs less than it may find."""

_WAITING_SECONDS = 0.02
"""A burst takes about this long at most while another text waits for its turn."""

_SHARED_ROWS = 1024
"""Most rows of a step in which texts go on: they wait for all of it."""

_SCORED_ROWS = 64
"""Rows of one text in a step whose logits are all wanted: they must fit in host memory beside the model."""


COUNTED = (
    *("prompt_tokens", "generated_tokens", "prefix_queries", "prefix_hits", "preemptions"),
    *("guessed_tokens", "right_guesses"),
)
"""What a scheduler counts; all but the preemptions in tokens."""


@dataclass(frozen=True, slots=True)
class Update:
    """What a step gave one sequence; sequence.finish_reason tells whether it is done."""

    sequence: Sequence
    tokens: tuple[int, ...]


class Scheduler:
    """Runs sequences on a runner. After an error of the device nothing has changed and a step can be tried again.

    burst_seconds: about how long greedy bursts may take, so that text keeps flowing on slow devices. counts: COUNTED,
    the evictions of block pools that are gone, and the tokens of steps that only decode. seconds: of steps with prompts
    ("prefill") and without ("decode"). errors: what ended texts, and what the engine adds. prompt_lookup: as in
    EngineOptions, "off" where the device computes a row in another way among others. recurrent: layers keep states,
    which stand for a whole text: others can begin with its blocks where there is a snapshot, and a step that failed may
    have moved them on.
    """

    def __init__(self, context: int, chunk: int, burst_seconds: float = 0.1, *, recurrent: bool = False) -> None:
        self.recurrent = recurrent
        self.context, self.chunk, self.burst_seconds = context, chunk, burst_seconds
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.counts: Counter[str] = Counter()
        self.seconds: dict[str, float] = {"prefill": 0.0, "decode": 0.0}
        self.errors = ErrorHistory()
        self.prompt_lookup: Choice = "off"
        self._payoff = Payoff()
        self._ended: list[Update] = []  # texts that ended without a step of their own
        self._burst, self._token_seconds = 0, 0.0
        self._blocks = BlockPool(0)

    def attach(self, runner: Runner, blocks: BlockPool) -> None:
        """Use a new runner and empty cache; running sequences wait, and compute their tokens again."""
        self._runner, self._blocks = runner, blocks
        self._cache: KVCache = runner.cache
        self._snapshots = Snapshots(runner.cache)
        self._lanes = list(range(self._cache.sequences - 1, -1, -1))

    def detach(self) -> None:
        """Forget runner and cache."""
        self.counts["evictions"] += self._blocks.evictions
        self._blocks = BlockPool(0)
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
        if not self._queued():  # what is on its way comes first
            self._admit()
        done: list[Update] = []
        if self.running:
            taking_part = [(sequence, sequence.generated_tokens == 0) for sequence in self.running]
            began = time.perf_counter()
            try:
                done = self._advance()
            except Exception:
                self._start_over()
                raise
            self._book_time(taking_part, time.perf_counter() - began, done)
        updates, self._ended = self._ended + done, []
        return updates

    def _advance(self) -> list[Update]:
        if any(sequence.pending > 1 or sequence.scored for sequence in self.running):
            return self._mixed()
        if all(sequence.greedy for sequence in self.running):
            return self._greedy()
        return self._sampled()

    def _start_over(self) -> None:
        """States that a step may have moved on are of no use: all texts compute their tokens again."""
        for sequence in self.running[::-1] if self.recurrent else []:
            self._preempt(sequence)

    def fail_all(self, error: Exception) -> list[Update]:
        """End every text with an error that is nobody's own."""
        updates = [self._fail(sequence, error) for sequence in (*self.running, *self.waiting)]
        updates, self._ended = self._ended + updates, []
        return updates

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
        """Give places to waiting texts in their order; one whose next block another one is computing waits for it."""
        if not self.waiting:
            return
        coming = {digest for sequence in self.running for digest in _being_computed(sequence)}
        for sequence in list(self.waiting):
            if not self._lanes:
                return
            digests = sequence.digests(len(sequence.tokens) - 1) if sequence.scored is None else []
            known = self._known(digests)
            if not self.recurrent and len(known) < len(digests) and digests[len(known)] in coming:
                self._blocks.release(known)
                continue
            needed = ceil_div(len(sequence.tokens) + 1, KV_BLOCK) - len(known)
            if needed <= self._blocks.available:
                self._place(sequence, known)
                coming.update(_being_computed(sequence))
                continue
            self._blocks.release(known)
            if self.running:
                return
            self._give_up(sequence)

    def _known(self, digests: list[bytes]) -> list[int]:
        """The blocks that a text can begin with: where layers keep states, up to a snapshot."""
        known = self._blocks.match(digests)
        if self.recurrent:
            covered = self._snapshots.covered(digests[: len(known)])
            self._blocks.release(known[covered:])
            known = known[:covered]
        return known

    def _place(self, sequence: Sequence, known: list[int]) -> None:
        """Start, or go on after a preemption, with the blocks that are known already."""
        self.waiting.remove(sequence)
        sequence.blocks, sequence.lane = known, self._lanes.pop()
        sequence.computed = len(known) * KV_BLOCK
        if sequence.admitted is None:
            sequence.admitted, sequence.reused = time.perf_counter(), sequence.computed
            self.counts["prompt_tokens"] += sequence.prompt_tokens
            self.counts["prefix_queries"] += sequence.prompt_tokens
            self.counts["prefix_hits"] += sequence.reused
        self.running.append(sequence)
        self._burst = 0
        self._runner.forget()
        self._grow(sequence, len(sequence.tokens) + 1)
        self._cache.set_table(sequence.lane, sequence.blocks)
        if self.recurrent and sequence.computed:
            self._snapshots.restore(sequence.digests(sequence.computed)[-1], sequence.lane)

    def _give_up(self, sequence: Sequence) -> None:
        """End a sequence that has outgrown the cache of a device that took over from a lost one."""
        log.warning("a text of %d tokens ends: the cache holds %d", len(sequence.tokens), self.limit)
        self.finish(sequence, "length")
        self._ended.append(Update(sequence, ()))

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        """Own blocks for the first `tokens` positions; False if the cache is full."""
        owned, needed = len(sequence.blocks), ceil_div(tokens, KV_BLOCK)
        while len(sequence.blocks) < needed:
            block = self._blocks.take()
            if block is None:
                return False
            sequence.blocks.append(block)
        if needed > owned:
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
        self.counts["preemptions"] += 1

    def _release(self, sequence: Sequence) -> None:
        self._blocks.release(sequence.blocks)
        self._lanes.append(sequence.lane)
        sequence.blocks, sequence.lane = [], -1

    def _mixed(self) -> list[Update]:
        """A row of every decoding sequence, then as much of the prompts as the chunk has room for."""
        self._reserve(1)
        spans: list[Span] = []
        numbers: dict[Row, int] = {}
        taken: list[tuple[Sequence, int, list[Row]]] = []
        used, going_on = 0, sum(sequence.pending == 1 for sequence in self.running)
        chunk = min(self.chunk, max(_SHARED_ROWS, going_on)) if going_on else self.chunk
        for sequence in sorted(self.running, key=lambda s: s.pending > 1):
            count = min(sequence.pending, chunk - used, _SCORED_ROWS if sequence.scored else chunk)
            start = sequence.computed
            if self.recurrent and start < (end := _snapshot_at(sequence)):
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
        return [self._take(sequence, count, rows) for sequence, count, rows in taken]

    def _greedy(self) -> list[Update]:
        queued = self._queued()
        if not queued and (guessed := self._guesses(self.running[0])):
            return self._check(self.running[0], guessed)
        count = queued or self._burst_length()
        self._reserve(count)
        ahead = self._ahead_of(count)
        began = time.perf_counter()
        tokens = self._runner.decode_greedy(_last_rows(self.running), count, ahead)
        self._burst, self._token_seconds = count, (time.perf_counter() - began) / count
        updates = []
        for sequence, row in zip(list(self.running), tokens.tolist(), strict=True):
            good = row[: row.index(-1)] if -1 in row else row
            update = self._accept(sequence, len(good), good)
            if len(good) < count and sequence.finish_reason is None:
                update = self._fail(sequence, not_a_number(), update.tokens)
            updates.append(update)
        return updates

    def _burst_length(self) -> int:
        """Bursts double up to what time allows, so that the first tokens come at once."""
        return max(1, min(2 * self._burst, self._affordable(), self._left(), _MAX_BURST))

    def _queued(self) -> int:
        return self._runner.queued(_last_rows(self.running)) if len(self.running) == 1 else 0

    def _affordable(self) -> int:
        seconds = min(self.burst_seconds, _WAITING_SECONDS) if self.waiting else self.burst_seconds
        return int(seconds / self._token_seconds) if self._token_seconds else _MAX_BURST

    def _left(self) -> int:
        return min(min(s.max_tokens - s.generated_tokens, self.limit - len(s.tokens)) for s in self.running)

    def _ahead_of(self, count: int) -> int:
        """Tokens to queue behind the next `count`, of a text that is alone: the device does not wait for the host then.
        Not of delta nets, whose states cannot go back, nor where the next tokens may be guessed."""
        if not self._runner.goes_ahead or len(self.running) != 1 or self.waiting or self.recurrent or self._looks():
            return 0
        ahead = min(2 * count, self._affordable(), self._left() - count, _MAX_BURST // 2)
        sequence = self.running[0]
        return ahead if ahead > 0 and self._grow(sequence, len(sequence.tokens) + count + ahead) else 0

    def _looks(self) -> bool:
        """Whether next tokens are guessed, as far as that is known before they are."""
        slow = self._token_seconds * _LOOKING > self.burst_seconds
        return self.prompt_lookup == "on" or (self.prompt_lookup == "auto" and slow)

    def _guesses(self, sequence: Sequence) -> list[int]:
        """Tokens to check; none where that does not pay, or would go past the end of the text or the cache."""
        if not self._looks() or len(self.running) > 1:  # rows of several texts keep the device busy
            return []
        room = min(sequence.max_tokens - sequence.generated_tokens, self.limit - len(sequence.tokens), self.chunk)
        if room <= GUESSES:
            return []
        guessed = sequence.lookup.guesses(sequence.tokens)
        wanted = guessed and (self.prompt_lookup == "on" or self._payoff.pays(self._token_seconds))
        return guessed if wanted else []

    def _check(self, sequence: Sequence, guessed: list[int]) -> list[Update]:
        """The guesses that are right, and the token after them. What the others left in the cache is overwritten."""
        self._reserve(1 + len(guessed))
        if sequence not in self.running:  # it stepped back for lack of room
            return []
        began = time.perf_counter()
        rows = [Row(sequence) for _ in range(1 + len(guessed))]
        span = Span(sequence.lane, sequence.computed, (sequence.tokens[-1], *guessed))
        ordered, wants = in_order(rows)
        for row, scores in zip(
            ordered, self._runner.prompt_step([span], range(len(rows)), wants, self.chunk), strict=True
        ):
            row.settle(scores)
        right = next((n for n, token in enumerate(guessed) if rows[n].token != token), len(guessed))
        tokens = [row.token for row in rows[: right + 1] if row.token is not None]
        self._payoff.book(time.perf_counter() - began, len(tokens))
        self.counts["guessed_tokens"] += len(guessed)
        self.counts["right_guesses"] += right
        update, error = self._accept(sequence, len(tokens), tokens), rows[right].error
        if error is not None and sequence.finish_reason is None:
            update = self._fail(sequence, error, update.tokens)
        return [update]

    def _sampled(self) -> list[Update]:
        """One token each."""
        self._reserve(1)
        rows, wants = in_order([Row(sequence) for sequence in self.running])
        steps = self._runner.decode_step(_last_rows(row.sequence for row in rows), wants)
        for row, scores in zip(rows, steps, strict=True):
            row.settle(scores)
        return [self._take(row.sequence, 1, [row]) for row in rows]

    def _take(self, sequence: Sequence, count: int, rows: list[Row]) -> Update:
        """Book `count` computed rows, and the token that the last of `rows` chose."""
        failed = next((row.error for row in rows if row.error is not None), None)
        if failed is not None:
            return self._fail(sequence, failed)
        if sequence.scored and count == sequence.pending:
            sequence.scored = None
        token = rows[-1].token if rows else None
        try:
            return self._accept(sequence, count, [] if token is None else [token])
        except Exception as exc:  # noqa: BLE001 - a constraint's own; the neighbours have no part in it
            return self._fail(sequence, exc)

    def _book_time(self, taking_part: list[tuple[Sequence, bool]], seconds: float, done: list[Update]) -> None:
        for sequence, prefilling in taking_part:
            if prefilling:
                sequence.prefill_seconds += seconds
            else:
                sequence.decode_seconds += seconds
        prompts = any(prefilling for _, prefilling in taking_part)
        self.seconds["prefill" if prompts else "decode"] += seconds
        if not prompts:
            self.counts["decoded_tokens"] += sum(len(update.tokens) for update in done)

    def _fail(self, sequence: Sequence, error: Exception, tokens: tuple[int, ...] = ()) -> Update:
        self.errors.add(error)
        sequence.error = error
        self.finish(sequence, "error")
        return Update(sequence, tokens)

    def _accept(self, sequence: Sequence, count: int, tokens: list[int]) -> Update:
        """Book `count` computed rows and the tokens they gave, up to where the sequence ends."""
        before = sequence.computed
        room = min(sequence.max_tokens - sequence.generated_tokens, self.limit - len(sequence.tokens))
        accepted: list[int] = []
        if sequence.constraint is None and len(tokens) < room and sequence.stop_ids.isdisjoint(tokens):
            accepted, tokens = tokens, []
            sequence.tokens += accepted
        for token in tokens:
            if token in sequence.stop_ids:
                sequence.finish_reason = "stop"
                break
            accepted.append(token)
            sequence.tokens.append(token)
            if sequence.constraint is not None and not sequence.constraint.accept(token):
                sequence.finish_reason = "stop"
                break
            if len(accepted) >= room:
                sequence.finish_reason = "length"
                break
        sequence.computed = min(before + count, len(sequence.tokens))
        if not sequence.max_tokens and not sequence.pending:
            sequence.finish_reason = "length"
        self.counts["generated_tokens"] += len(accepted)
        if self.recurrent and sequence.computed == _snapshot_at(sequence) > before:
            self._snapshots.keep(sequence.digests(sequence.computed)[-1], sequence.lane)
        if sequence.computed // KV_BLOCK > before // KV_BLOCK:
            digests = sequence.digests(sequence.computed)
            for index in range(before // KV_BLOCK, len(digests)):
                self._blocks.register(sequence.blocks[index], digests[index])
        if sequence.finish_reason:
            self.finish(sequence)
        return Update(sequence, tuple(accepted))


def _last_rows(sequences: Iterable[Sequence]) -> list[Span]:
    return [Span(s.lane, s.computed, (s.tokens[s.computed],)) for s in sequences]


def _rows_of(sequence: Sequence, count: int) -> list[Row]:
    """Those of its next `count` rows whose logits matter: the last of all, and every one that is to be scored."""
    done = 0 < count == sequence.pending
    chooses = done and sequence.max_tokens > 0
    if sequence.scored:
        at = sequence.computed
        return [Row(sequence, at + n, chooses and n == count - 1) for n in range(count)]
    return [Row(sequence)] if chooses else []


def _snapshot_at(sequence: Sequence) -> int:
    """Where the last full block of its prompt ends, with a token behind it."""
    return (sequence.prompt_tokens - 1) // KV_BLOCK * KV_BLOCK


def _being_computed(sequence: Sequence) -> list[bytes]:
    """Digests of the full blocks of a prompt that are not there yet."""
    if sequence.pending <= 1:
        return []
    return sequence.digests(len(sequence.tokens))[sequence.computed // KV_BLOCK :]
