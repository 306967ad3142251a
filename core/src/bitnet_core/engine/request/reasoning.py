"""Reasoning of a reply: the tokens between <think> and </think>, and a limit on their number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from bitnet_hal.rounding import ceil_div

from bitnet_core.engine.sampling.constraint import Constraint, Mask


class Reasoning:
    """A tracker of the reasoning tags in a reply. inside: True if the next token is reasoning."""

    def __init__(self, opening: int, closing: int, prompt: Sequence[int]) -> None:
        """Start at the end of a prompt, whose last tag decides if the reply begins inside. opening, closing: tag
        ids."""
        self._tags = {opening: True, closing: False}
        self.inside = next((self._tags[token] for token in reversed(prompt) if token in self._tags), False)
        self._begun = False

    def take(self, token: int) -> bool:
        """Track the next token; returns True for a tag, which is not shown."""
        if token not in self._tags:
            return False
        self.inside = self._tags[token]
        self._begun = False
        return True

    def trimmed(self, text: str) -> str:
        """Strip the line breaks between a tag and the text after it."""
        if not self._begun:
            text = text.lstrip("\n")
            self._begun = bool(text)
        return text


class ReasoningLimit:
    """A Constraint that forces the tokens `ending`, which contain the closing tag, after `limit` tokens of reasoning.

    inner: the constraint of the answer, which begins after the closing tag.
    """

    def __init__(
        self, reasoning: Reasoning, limit: int, ending: Sequence[int], vocab: int, inner: Constraint | None = None
    ) -> None:
        self._reasoning = reasoning
        self._left = limit
        self._ending = list(ending)
        self._inner = inner
        self._anything: Mask = np.full(ceil_div(vocab, 32), -1, np.int32)
        self._forced = 0  # tokens of the ending that were accepted

    def mask(self) -> Mask:
        """Return the allowed tokens: all of them within the limit, then the ending, then those of the inner
        constraint."""
        if self._ending_now:
            only = np.zeros_like(self._anything)
            token = self._ending[self._forced]
            only.view(np.uint32)[token // 32] = np.uint32(1 << token % 32)
            return only
        return self._inner.mask() if self._inner and not self._reasoning.inside else self._anything

    def accept(self, token: int) -> bool:
        """Count a token of the reasoning; pass one of the answer to the inner constraint."""
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
