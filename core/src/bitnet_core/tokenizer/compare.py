"""Comparison of two models' vocabularies."""

from __future__ import annotations

import numpy as np

from bitnet_core.tokenizer.tokenizer import Tokenizer
from bitnet_core.tokenizer.vocabulary import TokenType


def difference(tokenizer: Tokenizer, other: Tokenizer, count: int) -> str:
    """Return a description of the first difference of `other`, among the first `count` tokens and the special tokens;
    "" if all ids have the same meaning in both vocabularies."""
    ours, theirs = (list(one.tokens[:count]) for one in (tokenizer, other))
    if len(ours) != len(theirs):
        return f"it has {len(theirs):,} tokens, not {len(ours):,}"
    if tokenizer.byte_level != other.byte_level:
        return "it spells its tokens in another way"
    if ours != theirs:
        token = next(token for token, text in enumerate(ours) if text != theirs[token])
        return f"its token {token} is {theirs[token][:40]!r}, not {ours[token][:40]!r}"
    special, also = (one.types[:count] == TokenType.CONTROL for one in (tokenizer, other))
    if different := np.flatnonzero(special != also).tolist():
        kinds = ("an ordinary token", "a special token")
        first = different[0]
        return f"its token {first} ({ours[first][:40]!r}) is {kinds[int(also[first])]}"
    if tokenizer.eos_ids != other.eos_ids:
        return f"its texts end with the tokens {sorted(other.eos_ids)}, not {sorted(tokenizer.eos_ids)}"
    if tokenizer.bos_id != other.bos_id:
        return f"its texts begin with the token {other.bos_id}, not {tokenizer.bos_id}"
    return ""
