"""Which texts have a place, that is a lane and blocks of the cache, and which ones wait for one.

Texts that wait come in their order; where blocks run out, the text that came last steps back and computes its tokens
again later (the preemption of PagedAttention).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from bitnet_hal.kernels.catalogue import KV_BLOCK, ceil_div

from bitnet_core.engine.blocks import BlockPool
from bitnet_core.engine.cache import KVCache
from bitnet_core.engine.sequence import FinishReason, Sequence
from bitnet_core.engine.snapshots import Snapshots

log = logging.getLogger(__name__)


class Places:
    """waiting, running: the texts. limit: most tokens of one, prompt included: the context, or what the cache holds.
    recurrent: as in Scheduler. counts: what it adds to."""

    def __init__(self, context: int, counts: dict[str, int], *, recurrent: bool) -> None:
        self._context, self.recurrent = context, recurrent
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._counts = counts
        self.blocks = BlockPool(0)

    def attach(self, cache: KVCache, blocks: BlockPool) -> None:
        """Use an empty cache."""
        self._cache, self.blocks = cache, blocks
        self.limit = min(self._context, cache.blocks * KV_BLOCK)
        self.snapshots = Snapshots(cache)
        self._lanes = list(range(cache.sequences - 1, -1, -1))

    def detach(self) -> None:
        """Forget the cache: running sequences wait, and compute their tokens again."""
        self._counts["evictions"] += self.blocks.evictions
        self.blocks = BlockPool(0)
        for sequence in reversed(self.running):
            sequence.blocks, sequence.lane, sequence.computed = [], -1, 0
            self.waiting.appendleft(sequence)
        self.running.clear()

    def room(self, sequence: Sequence) -> int:
        """Tokens that it may still get."""
        return min(sequence.max_tokens - sequence.generated_tokens, self.limit - len(sequence.tokens))

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
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
            self.preempt(self.running[-1])
        blocks: list[int] = []
        while len(blocks) < ceil_div(tokens, KV_BLOCK):
            block = self.blocks.take()
            if block is None:
                self.preempt(self.running[-1])
            else:
                blocks.append(block)
        lane = self._lanes.pop()
        self._cache.set_table(lane, blocks)
        try:
            yield lane
        finally:
            self._lanes.append(lane)
            self.blocks.release(blocks)

    def admit(self) -> list[Sequence]:
        """Give places to waiting texts in their order; one whose next block another one is computing waits for it.
        Those that never get one end: the cache of a device that took over from a lost one is too small for them."""
        if not self.waiting:
            return []
        ended: list[Sequence] = []
        coming = {digest for sequence in self.running for digest in _being_computed(sequence)}
        for sequence in list(self.waiting):
            if not self._lanes:
                break
            digests = sequence.digests(len(sequence.tokens) - 1) if sequence.scored is None else []
            known = self._known(digests)
            if not self.recurrent and len(known) < len(digests) and digests[len(known)] in coming:
                self.blocks.release(known)
                continue
            needed = ceil_div(len(sequence.tokens) + 1, KV_BLOCK) - len(known)
            if needed <= self.blocks.available:
                self._place(sequence, known)
                coming.update(_being_computed(sequence))
                continue
            self.blocks.release(known)
            if self.running:
                break
            log.warning("a text of %d tokens ends: the cache holds %d", len(sequence.tokens), self.limit)
            self.finish(sequence, "length")
            ended.append(sequence)
        return ended

    def _known(self, digests: list[bytes]) -> list[int]:
        """The blocks that a text can begin with: where layers keep states, up to a snapshot."""
        known = self.blocks.match(digests)
        if self.recurrent:
            covered = self.snapshots.covered(digests[: len(known)])
            self.blocks.release(known[covered:])
            known = known[:covered]
        return known

    def _place(self, sequence: Sequence, known: list[int]) -> None:
        """Start, or go on after a preemption, with the blocks that are known already."""
        self.waiting.remove(sequence)
        sequence.blocks, sequence.lane = known, self._lanes.pop()
        sequence.computed = len(known) * KV_BLOCK
        if sequence.admitted is None:
            sequence.admitted, sequence.reused = time.perf_counter(), sequence.computed
            self._counts["prompt_tokens"] += sequence.prompt_tokens
            self._counts["prefix_queries"] += sequence.prompt_tokens
            self._counts["prefix_hits"] += sequence.reused
        self.running.append(sequence)
        self._grow(sequence, len(sequence.tokens) + 1)
        self._cache.set_table(sequence.lane, sequence.blocks)
        if self.recurrent and sequence.computed:
            self.snapshots.restore(sequence.digests(sequence.computed)[-1], sequence.lane)

    def reserve(self, extra: int) -> None:
        """Room for `extra` more tokens in every running sequence; the last one steps back where there is none."""
        wanted = [(sequence, min(len(sequence.tokens) + extra, self.limit)) for sequence in self.running]
        for sequence, tokens in wanted:
            while len(sequence.blocks) * KV_BLOCK < tokens and sequence in self.running:
                if not self._grow(sequence, tokens):
                    self.preempt(self.running[-1])

    def reserve_free(self, sequences: Iterable[Sequence], extra: int) -> bool:
        """Room for `extra` more tokens in these if nobody has to step back for it."""
        wanted = [(sequence, len(sequence.tokens) + extra) for sequence in sequences]
        missing = sum(max(0, ceil_div(tokens, KV_BLOCK) - len(sequence.blocks)) for sequence, tokens in wanted)
        return missing <= self.blocks.available and all(self._grow(sequence, tokens) for sequence, tokens in wanted)

    def preempt(self, sequence: Sequence) -> None:
        """It steps back."""
        self.running.remove(sequence)
        self._release(sequence)
        sequence.computed = 0
        self.waiting.appendleft(sequence)
        self._counts["preemptions"] += 1

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        """Own blocks for the first `tokens` positions; False if the cache is full."""
        owned, needed = len(sequence.blocks), ceil_div(tokens, KV_BLOCK)
        while len(sequence.blocks) < needed:
            block = self.blocks.take()
            if block is None:
                return False
            sequence.blocks.append(block)
        if needed > owned:
            self._cache.set_table(sequence.lane, sequence.blocks)
        return True

    def _release(self, sequence: Sequence) -> None:
        self.blocks.release(sequence.blocks)
        self._lanes.append(sequence.lane)
        sequence.blocks, sequence.lane = [], -1


def _being_computed(sequence: Sequence) -> list[bytes]:
    """Digests of the full blocks of a prompt that are not there yet."""
    if sequence.pending <= 1:
        return []
    return sequence.digests(len(sequence.tokens))[sequence.computed // KV_BLOCK :]
