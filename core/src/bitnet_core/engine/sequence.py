"""One text in the making: its tokens, its place in the cache, its limits."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
from bitnet_hal.kernels.catalogue import KV_BLOCK

from bitnet_core.engine.blocks import chain_digests
from bitnet_core.engine.constraint import Constraint
from bitnet_core.engine.lookup import Lookup
from bitnet_core.engine.sampling import Sampler

FinishReason = Literal["stop", "length", "cancelled", "error"]

Scored = Callable[[int, npt.NDArray[np.float32]], None]
"""scored(position, f32[V] logits after the token there); again from the start if the text has to be computed again."""

_ids = itertools.count()


@dataclass(slots=True, eq=False)
class Sequence:
    """tokens: prompt and what was generated; the first `computed` of them have keys and values in the cache.

    error: why the text ended, where finish_reason is "error". added, admitted: time.perf_counter() when the text was
    queued and when it first got a place. prefill_seconds and decode_seconds: of the steps up to the first token, and
    after it, that it took part in.
    """

    tokens: list[int]
    max_tokens: int
    sampler: Sampler
    stop_ids: frozenset[int]
    constraint: Constraint | None = None
    scored: Scored | None = None  # wants the logits after every token of the prompt
    id: int = field(default_factory=lambda: next(_ids))
    prompt_tokens: int = field(init=False)
    computed: int = 0
    reused: int = 0  # prompt tokens whose keys and values came from an earlier sequence
    blocks: list[int] = field(default_factory=list)
    lane: int = -1  # row of the block tables; -1 while waiting
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    added: float = field(default_factory=time.perf_counter)
    admitted: float | None = None
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    lookup: Lookup = field(default_factory=Lookup)
    _digests: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.tokens)

    @property
    def generated(self) -> list[int]:
        """Tokens after the prompt."""
        return self.tokens[self.prompt_tokens :]

    @property
    def generated_tokens(self) -> int:
        """How many they are."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def pending(self) -> int:
        """Tokens that are not computed yet; 1 while decoding."""
        return len(self.tokens) - self.computed

    @property
    def greedy(self) -> bool:
        """The device can choose alone."""
        return self.constraint is None and self.sampler.greedy

    def digests(self, upto: int) -> list[bytes]:
        """Digests of the full blocks within the first `upto` tokens."""
        count = upto // KV_BLOCK
        if len(self._digests) < count:
            self._digests = chain_digests(self.tokens[:upto], self._digests)
        return self._digests[:count]
