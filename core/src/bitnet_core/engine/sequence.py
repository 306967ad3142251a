"""One text in the making: its tokens, its place in the cache, its limits."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Literal

from bitnet_core.engine.blocks import chain_digests
from bitnet_core.engine.sampling import Sampler
from bitnet_core.kernels.catalogue import KV_BLOCK

FinishReason = Literal["stop", "length", "cancelled"]

_ids = itertools.count()


@dataclass(slots=True, eq=False)
class Sequence:
    """tokens: prompt and what was generated; the first `computed` of them have keys and values in the cache."""

    tokens: list[int]
    max_tokens: int
    sampler: Sampler
    stop_ids: frozenset[int]
    id: int = field(default_factory=lambda: next(_ids))
    prompt_tokens: int = field(init=False)
    computed: int = 0
    reused: int = 0  # prompt tokens whose keys and values came from an earlier sequence
    blocks: list[int] = field(default_factory=list)
    lane: int = -1  # row of the block tables; -1 while waiting
    finish_reason: FinishReason | None = None
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

    def digests(self, upto: int) -> list[bytes]:
        """Digests of the full blocks within the first `upto` tokens."""
        count = upto // KV_BLOCK
        if len(self._digests) < count:
            self._digests = chain_digests(self.tokens[:upto], self._digests)
        return self._digests[:count]
