"""Reasoning of a reply: the tokens between <think> and </think>, and a limit on their number."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from bitnet_hal.rounding import ceil_div

from bitnet_core.engine.sampling.constraint import Constraint, Mask, allows

_GAP: Final = 4
"""Tokens of white space that may stand between the reasoning and the answer."""


class Reasoning:
    """A tracker of the reasoning tags in a reply. inside: True if the next token is reasoning."""

    def __init__(self, opening: int, closing: int, prompt: Sequence[int]) -> None:
        """Start at the end of a prompt; if its last tag is the opening one, the reply begins inside. opening, closing:
        token ids of the tags."""
        self.opening, self.closing = opening, closing
        self._tags = {opening: True, closing: False}
        self._prompt = prompt
        self.inside = next((self._tags[token] for token in reversed(prompt) if token in self._tags), False)
        self._begun = False

    def take(self, token: int) -> bool:
        """Track the next token; returns True if it is a tag, which is not shown."""
        if token not in self._tags:
            return False
        self.inside = self._tags[token]
        self._begun = False
        return True

    def closed(self, blank: Callable[[int], bool]) -> bool:
        """Return True if the prompt ends with the closing tag and white space: the template has switched reasoning off.
        blank: tells if a token is white space."""
        last = next((token for token in reversed(self._prompt) if not blank(token)), None)
        return last == self.closing

    def trimmed(self, text: str) -> str:
        """Strip the line breaks between a tag and the text that follows it."""
        if not self._begun:
            text = text.lstrip("\n")
            self._begun = bool(text)
        return text


class ReasoningLimit:
    """A Constraint that forces the tokens `ending`, which contain the closing tag, after `limit` tokens of reasoning.

    inner: the constraint of the answer. It starts after the closing tag and up to _GAP tokens of white space, or with
    the first token if the reply has no reasoning: a model may open the reasoning itself. blank: Mask of the tokens of
    white space.
    """

    def __init__(
        self,
        reasoning: Reasoning,
        limit: int,
        ending: Sequence[int],
        vocab: int,
        inner: Constraint | None = None,
        blank: Mask | None = None,
    ) -> None:
        self._reasoning = reasoning
        self._left = limit
        self._ending = list(ending)
        self.inner = inner
        self._anything: Mask = np.full(ceil_div(vocab, 32), -1, np.int32)
        self._blank = np.zeros_like(self._anything) if blank is None else blank
        self._forced = 0  # tokens of the ending that were accepted
        self._may_open = not reasoning.closed(lambda token: allows(self._blank, token))
        self._gap = 0  # tokens of white space that may follow the closing tag

    def mask(self) -> Mask:
        """Return the allowed tokens: all of them within the limit, then the ending, then those of the inner
        constraint."""
        if self._ending_now:
            return _only(self._ending[self._forced], self._anything)
        if self.inner is None or self._reasoning.inside:
            return self._anything
        mask = self.inner.mask()[: len(self._anything)]
        opening = _only(self._reasoning.opening, mask)
        if self._may_open:
            return mask | opening
        mask = mask & ~(opening | _only(self._reasoning.closing, mask))
        return mask | self._blank if self._gap else mask

    def accept(self, token: int) -> bool:
        """Count a token of the reasoning; pass one of the answer to the inner constraint."""
        if self._ending_now:
            self._forced += 1
            self._take_tag(token)
            return True
        if self._take_tag(token):
            return True
        if self._reasoning.inside:
            self._left -= 1
            return True
        blank = allows(self._blank, token)
        self._may_open = self._may_open and blank
        if self._gap and blank:
            self._gap -= 1
            return True
        self._gap = 0
        return self.inner.accept(token) if self.inner else True

    def copy(self) -> ReasoningLimit:
        """Return an independent limit in the same state."""
        other = copy.copy(self)
        other._reasoning = copy.copy(self._reasoning)
        other.inner = self.inner.copy() if self.inner else None
        return other

    def _take_tag(self, token: int) -> bool:
        """Track a token; returns True if it is a tag."""
        if not self._reasoning.take(token):
            return False
        self._may_open = False
        self._gap = _GAP if token == self._reasoning.closing else 0
        return True

    @property
    def _ending_now(self) -> bool:
        return self._left <= 0 and self._forced < len(self._ending) and (self._reasoning.inside or self._forced > 0)


def _only(token: int, like: Mask) -> Mask:
    """Return a mask of one token, of the shape of another mask."""
    only = np.zeros_like(like)
    only.view(np.uint32)[token // 32] = np.uint32(1 << token % 32)
    return only
