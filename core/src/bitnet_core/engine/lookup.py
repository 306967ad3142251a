"""Guesses of a greedy text's next tokens by prompt lookup (Saxena 2023): what followed its last tokens before.

A step that computes the guesses beside the text's last token tells which of them are right. Where steps of few rows
take no longer than those of one, right guesses are tokens for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from bitnet_hal.device import LIKE_ROWS

GUESSES = LIKE_ROWS - 1
"""Tokens that a step checks, beside the one that is sure."""
_LENGTHS = (3, 2, 1)
"""Of the last tokens that are looked up, the longest first."""
_FIRST_CHECKS, _WARM_UPS = 6, 2
"""Checks that are made to see what they bring, and those of them that compile and record."""
_LAST_CHECKS = 8
"""About how many of them the means go back to."""
_AGAIN = 16
"""Chances that pass before a check is tried once more."""


class Lookup:
    """Where each of a text's tokens in a row came last; the text may only grow."""

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}
        self._seen = 0

    def guesses(self, tokens: Sequence[int]) -> list[int]:
        """GUESSES tokens that may come next; none where the last ones never came before."""
        for end in range(self._seen, len(tokens)):
            for length in _LENGTHS:
                if end >= length:
                    self._after[tuple(tokens[end - length : end])] = end
        self._seen = len(tokens)
        for length in _LENGTHS:
            at = self._after.get(tuple(tokens[-length:]))
            if at is not None and len(tokens) >= length:
                found = list(tokens[at : at + GUESSES])
                return (found * GUESSES)[:GUESSES]  # what repeats at the end goes on
        return []


class Payoff:
    """Whether checks gain time: means of what they take, in seconds, and give, in tokens."""

    def __init__(self) -> None:
        self.seconds = self.tokens = 0.0
        self._checks = self._passed = 0

    def pays(self, token_seconds: float) -> bool:
        """Whether to check once more where a token alone takes so long; now and then although it did not pay."""
        if self._checks < _FIRST_CHECKS or self.tokens * token_seconds > self.seconds:
            return True
        self._passed += 1
        return self._passed % _AGAIN == 0

    def book(self, seconds: float, tokens: int) -> None:
        """A check took so long and gave so many."""
        self._checks += 1
        if self._checks <= _WARM_UPS:
            return
        share = 1 / min(self._checks - _WARM_UPS, _LAST_CHECKS)
        self.seconds += share * (seconds - self.seconds)
        self.tokens += share * (tokens - self.tokens)
