"""A generation request: its tokens, cache blocks and limits."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from bitnet_core.engine.sampling.constraint import Constraint
from bitnet_core.engine.sampling.sampler import Sampler

FinishReason = Literal["stop", "length", "cancelled", "error"]

Scored = Callable[[int, npt.NDArray[np.float32]], None]
"""Called with (position, f32[V] logits after the token there); restarts at position 0 if the request is recomputed."""

_ids = itertools.count()


@dataclass(slots=True, eq=False, weakref_slot=True)
class Request:
    """A generation request. tokens: prompt and generated tokens; the cache holds the keys and values of the first
    `computed` tokens.

    error: why the request ended, if finish_reason is "error". added, admitted: time.perf_counter() when it was queued
    and when it was first admitted. prefill_seconds, decode_seconds: durations of the steps up to and after its first
    token. prefilling: True until a step has generated the first token. greedy: True if the device can choose the
    tokens: no constraint, greedy sampling of raw logits.
    """

    tokens: list[int]
    max_tokens: int
    sampler: Sampler
    stop_token_ids: frozenset[int]
    constraint: Constraint | None = None
    scored: Scored | None = None  # receives the logits after every prompt token
    id: int = field(default_factory=lambda: next(_ids))
    prompt_tokens: int = field(init=False)
    greedy: bool = field(init=False)
    prefilling: bool = True
    computed: int = 0
    cached_tokens: int = 0  # prompt tokens whose keys and values came from an earlier request
    blocks: list[int] = field(default_factory=list)
    req_index: int = -1  # row of the block tables; -1 while waiting
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    added: float = field(default_factory=time.perf_counter)
    admitted: float | None = None
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    draft_tokens: int = 0  # number of verified draft tokens
    accepted_tokens: int = 0  # number of accepted draft tokens
    prompt_checkpoint: int = 0  # position of the last state checkpoint in the prompt, else the first computed position
    answer_checkpoint: bytes | None = None  # block hash of the state checkpoint in the answer
    block_hashes: list[bytes] = field(default_factory=list)  # of the first full blocks, as far as computed

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.tokens)
        self.greedy = self.constraint is None and self.sampler.greedy

    def renumber(self) -> None:
        """Give a request of another process an id that is unique in this process."""
        self.id = next(_ids)

    @property
    def generated(self) -> list[int]:
        """Tokens after the prompt."""
        return self.tokens[self.prompt_tokens :]

    @property
    def generated_tokens(self) -> int:
        """Number of generated tokens."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def pending(self) -> int:
        """Number of tokens that are not computed yet; 1 while decoding."""
        return len(self.tokens) - self.computed

    def append_until_end(self, tokens: Sequence[int], tokens_left: int) -> list[int]:
        """Append tokens one by one, at most `tokens_left`, until the request ends; returns the appended tokens."""
        accepted: list[int] = []
        for token in tokens:
            if token in self.stop_token_ids:
                self.finish_reason = "stop"
                break
            accepted.append(token)
            self.tokens.append(token)
            if self.constraint is not None and not self.constraint.accept(token):
                self.finish_reason = "stop"
                break
            if len(accepted) >= tokens_left:
                self.finish_reason = "length"
                break
        return accepted
