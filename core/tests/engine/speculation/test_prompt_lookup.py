"""Prompt lookup: draft tokens from the request's own tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bitnet_core.engine.speculation.prompt_lookup import LENGTHS, NgramIndex, PromptLookup

DRAFT = 4


def expected(tokens: list[int]) -> list[int]:
    """The tokens after the latest earlier place of the longest n-gram, over and over where the text ends."""
    for length in LENGTHS:
        for at in range(len(tokens) - 1, length - 1, -1):
            if tokens[at - length : at] == tokens[-length:]:
                return ((tokens[at:] * DRAFT) if len(tokens) - at < DRAFT else tokens[at:])[:DRAFT]
    return []


@pytest.mark.parametrize("seed", range(20))
def test_drafts_are_the_tokens_after_the_same_tokens_before(seed: int) -> None:
    draw = np.random.default_rng(seed)
    index = NgramIndex()
    tokens = draw.integers(0, 4, int(draw.integers(1, 20))).tolist()
    found = 0
    for _ in range(60):
        drafted = index.following(tokens, DRAFT)
        assert drafted == expected(tokens)
        found += bool(drafted)
        tokens += draw.integers(0, 4, int(draw.integers(1, 4))).tolist()
    assert 10 < found < 60


class Tokens(SimpleNamespace):
    """A request, as far as prompt lookup is concerned."""

    def __hash__(self) -> int:
        return id(self)


def test_each_request_is_looked_up_in_its_own_tokens() -> None:
    drafter = PromptLookup()
    one: Any = Tokens(tokens=[1, 2, 3, 4, 5, 6, 1, 2, 3])
    other: Any = Tokens(tokens=[7, 8, 9, 1, 2, 3])
    assert drafter.propose({one: 2, other: 2}) == {one: [4, 5]}
    other.tokens += [5, 7, 8, 9]
    assert drafter.propose({one: 3, other: 1}) == {one: [4, 5, 6], other: [1]}
