"""Draft tokens by a smaller model of the same vocabulary (Leviathan et al. 2023), on the same or another device.

The draft model has its own cache. It holds the keys and values of each request's tokens up to its last proposal, draft
tokens included; those of rejected ones are overwritten, and tokens that are missing are computed first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from bitnet_hal.errors import GpuError, UsageError
from bitnet_hal.kernels.catalogue import KV_BLOCK

from bitnet_core.engine.engine import Engine
from bitnet_core.engine.request.request import Request
from bitnet_core.engine.run.batch import ScheduledTokens

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Sequence:
    """The cache of one request. tokens: those whose keys and values are in the cache; the first `known` of them were
    compared with the request's."""

    req_index: int
    blocks: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    known: int = 0


class DraftModel:
    """A drafter that decodes greedily with an engine of its own, which it closes."""

    kind = "draft"

    def __init__(self, engine: Engine) -> None:
        if engine.config.delta:
            raise UsageError(
                f"{engine.config.name or engine.config.arch} cannot be a draft model: the states of its delta nets "
                "cannot be rolled back"
            )
        self.engine = engine
        self._runner = engine.runner()
        self._blocks = engine.block_pool
        self._free = list(range(self._runner.cache.sequences))
        self._sequences: dict[Request, _Sequence] = {}  # the least recently used first
        self._closed = False

    def propose(self, limits: Mapping[Request, int]) -> dict[Request, list[int]]:
        """Return the draft model's greedy tokens. A failure of its device ends speculation, but no request."""
        if self._closed:
            return {}
        try:
            return self._proposed(limits)
        except GpuError as exc:
            log.warning("the draft model failed (%s); speculation is off", exc)
            self.close()
            return {}

    def committed(self, request: Request, row: int, drafted: int, accepted: int) -> None:
        """Do nothing: the next proposal determines which tokens the cache lacks."""

    def close(self) -> None:
        """Free the draft model and close its device and its file; may be called twice."""
        if not self._closed:
            self._closed = True
            self._sequences.clear()
            try:
                self.engine.close()
            except GpuError as exc:
                log.debug("closing the draft model: %s", exc)
            self.engine.source.close()

    def _proposed(self, limits: Mapping[Request, int]) -> dict[Request, list[int]]:
        for request in [one for one in self._sequences if one.finish_reason is not None]:
            self._release(request)
        count = max(limits.values())
        following: dict[Request, _Sequence] = {}
        for request in limits:
            sequence = self._sequence(request, len(request.tokens) + count, limits)
            if sequence is not None:
                following[request] = sequence
        self._catch_up(following)
        if not following:
            return {}
        rows = [ScheduledTokens(one.req_index, len(r.tokens) - 1, (r.tokens[-1],)) for r, one in following.items()]
        found = self._runner.multi_step.decode(rows, count)
        drafts: dict[Request, list[int]] = {}
        for (request, sequence), tokens in zip(following.items(), found.tolist(), strict=True):
            sequence.known = len(request.tokens)
            sequence.tokens = [*request.tokens, *tokens[:-1]]
            draft = tokens[: limits[request]]
            if draft := draft[: draft.index(-1)] if -1 in draft else draft:
                drafts[request] = draft
        return drafts

    def _sequence(self, request: Request, length: int, kept: Mapping[Request, int]) -> _Sequence | None:
        """Return the request's sequence with blocks for `length` tokens; None if the cache is too small. kept: the
        requests whose sequences must not be evicted."""
        if length > self.engine.max_model_len:
            return None
        sequence = self._sequences.pop(request, None)
        if sequence is None:
            if not self._free and not self._evict(kept):
                return None
            sequence = _Sequence(self._free.pop())
        self._sequences[request] = sequence
        while len(sequence.blocks) * KV_BLOCK < length:
            block = self._blocks.allocate()
            if block is not None:
                sequence.blocks.append(block)
            elif not self._evict(kept):
                self._release(request)
                return None
        self._runner.cache.set_table(sequence.req_index, sequence.blocks)
        return sequence

    def _evict(self, kept: Mapping[Request, int]) -> bool:
        """Release the least recently used sequence; False if all of them are in `kept`."""
        oldest = next((request for request in self._sequences if request not in kept), None)
        if oldest is None:
            return False
        self._release(oldest)
        return True

    def _release(self, request: Request) -> None:
        sequence = self._sequences.pop(request)
        self._blocks.release(sequence.blocks)
        self._free.append(sequence.req_index)
        self._runner.multi_step.forget()  # its rows may include one of this request slot

    def _catch_up(self, following: Mapping[Request, _Sequence]) -> None:
        """Compute the tokens that the caches lack, except the last one of each request."""
        chunk = self.engine.scheduler.chunk
        for spans in _steps(_missing(following), chunk):
            for _ in self._runner.prompt_step(spans, [], [], chunk):
                pass


def _missing(following: Mapping[Request, _Sequence]) -> Iterator[ScheduledTokens]:
    """Yield the tokens of each request that the cache lacks, except the last one."""
    for request, sequence in following.items():
        tokens = request.tokens
        start = sequence.known
        while start < min(len(sequence.tokens), len(tokens) - 1) and sequence.tokens[start] == tokens[start]:
            start += 1
        if start < len(tokens) - 1:
            yield ScheduledTokens(sequence.req_index, start, tuple(tokens[start:-1]))


def _steps(spans: Iterable[ScheduledTokens], chunk: int) -> Iterator[list[ScheduledTokens]]:
    """Group spans into steps of at most `chunk` rows; spans are cut at the end of a step."""
    step: list[ScheduledTokens] = []
    spare = chunk
    for req_index, position, tokens in spans:
        start = 0
        while start < len(tokens):
            part = tokens[start : start + spare]
            step.append(ScheduledTokens(req_index, position + start, part))
            start += len(part)
            spare -= len(part)
            if not spare:
                yield step
                step, spare = [], chunk
    if step:
        yield step
