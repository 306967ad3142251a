"""The waiting and the running requests: rows of the block tables, blocks of the KV cache, and new tokens.

Requests are admitted in order of arrival. When blocks run out, the request that was admitted last is preempted and
recomputed later (the preemption of PagedAttention, Kwon et al. 2023).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from bitnet_hal.kernels.catalogue import KV_BLOCK
from bitnet_hal.rounding import ceil_div

from bitnet_core.engine.kv_cache.block_pool import BlockPool, block_hashes
from bitnet_core.engine.kv_cache.cache import KVCache
from bitnet_core.engine.kv_cache.checkpoints import StateCheckpoints
from bitnet_core.engine.request.request import FinishReason, Request
from bitnet_core.engine.schedule.state_positions import keep_state

log = logging.getLogger(__name__)


class Admission:
    """The waiting and the running requests, and the cache that the running ones share. max_model_len: maximum tokens of
    a request, prompt included: the smaller of the context and the cache. recurrent: as in Scheduler. counts: the
    counters to update."""

    def __init__(self, context: int, counts: dict[str, int], *, recurrent: bool) -> None:
        self._context = context
        self.recurrent = recurrent
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._counts = counts
        self.blocks = BlockPool(0)

    def attach(self, cache: KVCache, blocks: BlockPool) -> None:
        """Use an empty cache."""
        self._cache = cache
        self.blocks = blocks
        self.max_model_len = min(self._context, cache.blocks * KV_BLOCK)
        self.checkpoints = StateCheckpoints(cache, blocks)
        self._free_indices = list(range(cache.sequences - 1, -1, -1))

    @property
    def spare_states(self) -> int:
        """Number of requests whose states can be saved during a step."""
        return self._cache.spares

    def detach(self) -> None:
        """Forget the cache: running requests go back to the queue and are recomputed."""
        self._counts["evictions"] += self.blocks.evictions
        self.blocks = BlockPool(0)
        for request in reversed(self.running):
            request.blocks = []
            request.req_index = -1
            request.computed = 0
            self.waiting.appendleft(request)
        self.running.clear()

    def tokens_left(self, request: Request) -> int:
        """Number of tokens that the request may still generate."""
        return min(request.prompt_tokens + request.max_tokens, self.max_model_len) - len(request.tokens)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request now; its full blocks stay in the cache for reuse."""
        request.finish_reason = request.finish_reason or reason
        if request in self.running:
            self.running.remove(request)
            self._release(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    def has_room(self, tokens: int) -> bool:
        """Return whether a table row and blocks for `tokens` tokens can be borrowed without a preemption."""
        return bool(self._free_indices) and ceil_div(tokens, KV_BLOCK) <= self.blocks.available

    @contextmanager
    def borrow_index(self, tokens: int) -> Iterator[int]:
        """Lend a table row with blocks for `tokens` <= max_model_len positions to a caller without a request; requests
        are preempted if necessary."""
        if not self._free_indices:
            self.preempt(self.running[-1])
        blocks: list[int] = []
        while len(blocks) < ceil_div(tokens, KV_BLOCK):
            block = self.blocks.allocate()
            if block is None:
                self.preempt(self.running[-1])
            else:
                blocks.append(block)
        req_index = self._free_indices.pop()
        self._cache.set_table(req_index, blocks)
        try:
            yield req_index
        finally:
            self._free_indices.append(req_index)
            self.blocks.release(blocks)

    def admit(self) -> list[Request]:
        """Admit waiting requests in order, except that a request whose next prefix block is being computed by another
        waits for it. Ends and returns requests that can never be admitted, because the cache of a replacement device is
        too small for them."""
        if not self.waiting:
            return []
        ended: list[Request] = []
        pending_hashes = {block_hash for request in self.running for block_hash in _pending_hashes(request)}
        for request in list(self.waiting):
            if not self._free_indices:
                break
            prefix = block_hashes(request, len(request.tokens) - 1) if request.scored is None else []
            known = self._cached_prefix(prefix)
            if not self.recurrent and len(known) < len(prefix) and prefix[len(known)] in pending_hashes:
                self.blocks.release(known)
                continue
            needed = ceil_div(len(request.tokens) + 1, KV_BLOCK) - len(known)
            if needed <= self.blocks.available:
                self._start(request, known)
                pending_hashes.update(_pending_hashes(request))
                continue
            self.blocks.release(known)
            if self.running:
                break
            log.warning("request truncated: %d tokens, the cache holds %d", len(request.tokens), self.max_model_len)
            self.finish(request, "length")
            ended.append(request)
        return ended

    def _cached_prefix(self, prefix: list[bytes]) -> list[int]:
        """Own and return the cached blocks that a request can start with; in recurrent models, up to a state
        checkpoint."""
        known = self.blocks.get_cached(prefix)
        if self.recurrent:
            covered = self.checkpoints.longest(prefix[: len(known)])
            self.blocks.release(known[covered:])
            known = known[:covered]
        return known

    def _start(self, request: Request, known: list[int]) -> None:
        """Start a request, or resume it after a preemption, after its cached blocks `known`."""
        self.waiting.remove(request)
        request.blocks = known
        request.req_index = self._free_indices.pop()
        request.computed = len(known) * KV_BLOCK
        if request.admitted is None:
            request.admitted = time.perf_counter()
            request.cached_tokens = request.computed
            self._counts["prompt_tokens"] += request.prompt_tokens
            self._counts["prefix_queries"] += request.prompt_tokens
            self._counts["prefix_hits"] += request.cached_tokens
        self.running.append(request)
        self._grow(request, len(request.tokens) + 1)
        self._cache.set_table(request.req_index, request.blocks)
        request.prompt_checkpoint = request.computed
        request.answer_checkpoint = None
        if self.recurrent and request.computed:
            self.checkpoints.restore(block_hashes(request, request.computed)[-1], request.req_index)

    def reserve(self, extra: int) -> None:
        """Allocate blocks for `extra` more tokens of every running request; preempts the last request while there are
        too few."""
        for request in self.running.copy():
            tokens = min(len(request.tokens) + extra, self.max_model_len)
            while len(request.blocks) * KV_BLOCK < tokens and request in self.running:
                if not self._grow(request, tokens):
                    self.preempt(self.running[-1])

    def reserve_free(self, requests: Iterable[Request], extra: int) -> bool:
        """Allocate blocks for `extra` more tokens of these requests; False if that would take a preemption."""
        growing: dict[Request, int] = {}  # request -> number of tokens that it needs blocks for
        missing = 0
        for request in requests:
            tokens = len(request.tokens) + extra
            if tokens > len(request.blocks) * KV_BLOCK:
                growing[request] = tokens
                missing += ceil_div(tokens, KV_BLOCK) - len(request.blocks)
        if not growing:
            return True
        return missing <= self.blocks.available and all(map(self._grow, growing, growing.values()))

    def accept_tokens(self, request: Request, count: int, tokens: list[int]) -> tuple[int, ...]:
        """Record `count` computed rows, append their tokens up to the request's end, and publish full blocks for reuse.
        Returns the appended tokens."""
        before = request.computed
        tokens_left = self.tokens_left(request)
        if request.constraint is None and len(tokens) < tokens_left and request.stop_token_ids.isdisjoint(tokens):
            accepted = tokens
            request.tokens += accepted
        else:
            accepted = request.append_until_end(tokens, tokens_left)
        request.computed = min(before + count, len(request.tokens))
        if not request.max_tokens and not request.pending:
            request.finish_reason = "length"
        self._counts["generated_tokens"] += len(accepted)
        first = before // KV_BLOCK
        if request.computed // KV_BLOCK > first:
            for index, block_hash in enumerate(block_hashes(request, request.computed)[first:], first):
                self.blocks.register(request.blocks[index], block_hash)
        if self.recurrent and request.computed == before + count > before:  # else the states are ahead of the tokens
            keep_state(self.checkpoints, request, len(self.running))
        if request.finish_reason:
            self.finish(request, request.finish_reason)
        return tuple(accepted)

    def preempt(self, request: Request) -> None:
        """Give up the request's blocks and put it back at the head of the queue."""
        self.running.remove(request)
        self._release(request)
        request.computed = 0
        self.waiting.appendleft(request)
        self._counts["preemptions"] += 1

    def _grow(self, request: Request, tokens: int) -> bool:
        """Own blocks for the first `tokens` positions; False if the cache is full."""
        owned = len(request.blocks)
        while len(request.blocks) * KV_BLOCK < tokens:
            block = self.blocks.allocate()
            if block is None:
                return False
            request.blocks.append(block)
        if len(request.blocks) > owned:
            self._cache.set_table(request.req_index, request.blocks)
        return True

    def _release(self, request: Request) -> None:
        self.blocks.release(request.blocks)
        self._free_indices.append(request.req_index)
        request.blocks = []
        request.req_index = -1


def _pending_hashes(request: Request) -> list[bytes]:
    """Return the hashes of the full blocks of a request that are not computed yet."""
    if request.pending <= 1:
        return []
    return block_hashes(request, len(request.tokens))[request.computed // KV_BLOCK :]
