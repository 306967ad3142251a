"""Two vocabularies are the same, or their first difference is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bitnet_core.tokenizer.compare import difference
from bitnet_core.tokenizer.tokenizer import Tokenizer
from bitnet_core.tokenizer.vocabulary import TokenType

NORMAL, CONTROL = TokenType.NORMAL, TokenType.CONTROL


def tokenizer(**changes: Any) -> Tokenizer:
    given: dict[str, Any] = {
        "tokens": ["a", "b", "<end>", "pad"],
        "types": [NORMAL, NORMAL, CONTROL, NORMAL],
        "byte_level": True,
        "bos_id": None,
        "eos_id": 2,
        "eos_ids": frozenset({2}),
        **changes,
    }
    given["types"] = np.array(given["types"], np.int8)
    return Tokenizer(lambda: None, lambda _: None, add_bos=False, space_prefix=False, **given)  # type: ignore[arg-type, return-value]  # never encodes


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, ""),
        ({"tokens": ["a", "b", "<end>", "other padding"]}, ""),
        ({"tokens": ["a", "c", "<end>", "pad"]}, "its token 1 is 'c', not 'b'"),
        ({"tokens": ["a", "b"], "types": [NORMAL] * 2}, "it has 2 tokens, not 3"),
        ({"byte_level": False}, "it spells its tokens in another way"),
        ({"types": [NORMAL] * 4}, "its token 2 ('<end>') is an ordinary token"),
        ({"types": [CONTROL, NORMAL, CONTROL, NORMAL]}, "its token 0 ('a') is a special token"),
        ({"eos_ids": frozenset({1, 2})}, "its texts end with the tokens [1, 2], not [2]"),
        ({"bos_id": 1}, "its texts begin with the token 1, not None"),
    ],
)
def test_the_first_difference_is_named(changes: dict[str, Any], found: str) -> None:
    assert difference(tokenizer(), tokenizer(**changes), 3) == found
