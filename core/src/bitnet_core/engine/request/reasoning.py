"""Reasoning of a reply: told apart from the answer by the tokens <think> and </think>, and ended in time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from bitnet_hal.rounding import ceil_div

from bitnet_core.engine.sampling.constraint import Constraint, Mask


class Reasoning:
    """Follows the tokens of a reply. inside: the next one is reasoning."""

    def __init__(self, opening: int, closing: int, prompt: Sequence[int]) -> None:
        """opening, closing: ids of the tags. prompt: its last tag says whether the reply begins inside."""
        self._tags = {opening: True, closing: False}
        self.inside = next((self._tags[token] for token in reversed(prompt) if token in self._tags), False)
        self._begun = False

    def take(self, token: int) -> bool:
        """Take in the next token; whether it is a tag, which no text shows."""
        if token not in self._tags:
            return False
        self.inside, self._begun = self._tags[token], False
        return True

    def trimmed(self, text: str) -> str:
        """The text without the line breaks that separate it from a tag before it."""
        if not self._begun:
            text = text.lstrip("\n")
            self._begun = bool(text)
        return text


class ReasoningLimit:
    """A Constraint that ends the reasoning after `limit` tokens with the tokens `ending`, the closing tag among them.

    inner: what constrains the answer, which begins after the closing tag.
    """

    def __init__(
        self, reasoning: Reasoning, limit: int, ending: Sequence[int], vocab: int, inner: Constraint | None = None
    ) -> None:
        self._reasoning, self._left, self._ending, self._inner = reasoning, limit, list(ending), inner
        self._anything: Mask = np.full(ceil_div(vocab, 32), -1, np.int32)
        self._forced = 0  # tokens of the ending that were taken

    def mask(self) -> Mask:
        """Anything within the limit, then the ending, then what the inner constraint says."""
        if self._ending_now:
            only = np.zeros_like(self._anything)
            token = self._ending[self._forced]
            only.view(np.uint32)[token // 32] = np.uint32(1 << token % 32)
            return only
        return self._inner.mask() if self._inner and not self._reasoning.inside else self._anything

    def accept(self, token: int) -> bool:
        """Count a token of the reasoning; hand one of the answer on."""
        if self._ending_now:
            self._forced += 1
            self._reasoning.take(token)
            return True
        if self._reasoning.take(token):
            return True
        if self._reasoning.inside:
            self._left -= 1
            return True
        return self._inner.accept(token) if self._inner else True

    @property
    def _ending_now(self) -> bool:
        return self._left <= 0 and self._forced < len(self._ending) and (self._reasoning.inside or self._forced > 0)
