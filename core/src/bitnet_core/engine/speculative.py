"""Draft tokens by prompt lookup (n-gram speculation, Saxena 2023): the tokens that followed the last ones before.

A step that computes the draft tokens beside the request's last token tells which of them are accepted. If steps of a
few rows take no longer than steps of one, accepted tokens are free.
"""

from __future__ import annotations

from collections.abc import Sequence

from bitnet_hal.device import BATCH_INVARIANT_ROWS

DRAFT_TOKENS = BATCH_INVARIANT_ROWS - 1
"""Draft tokens that a step verifies beside the certain one."""
_LENGTHS = (3, 2, 1)
"""Of the last tokens that are looked up, the longest first."""
_FIRST_CHECKS, _WARM_UPS = 6, 2
"""Checks that are made to see what they bring, and those of them that compile and record."""
_LAST_CHECKS = 8
"""About how many of them the means go back to."""
_AGAIN = 16
"""Chances that pass before a check is tried once more."""


class NgramDrafter:
    """Index of the positions after each n-gram of a request's tokens, which may only grow."""

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}
        self._seen = 0

    def draft(self, tokens: Sequence[int]) -> list[int]:
        """Return DRAFT_TOKENS draft tokens; [] if the last tokens did not occur before."""
        for end in range(self._seen, len(tokens)):
            for length in _LENGTHS:
                if end >= length:
                    self._after[tuple(tokens[end - length : end])] = end
        self._seen = len(tokens)
        for length in _LENGTHS:
            at = self._after.get(tuple(tokens[-length:]))
            if at is not None and len(tokens) >= length:
                found = list(tokens[at : at + DRAFT_TOKENS])
                return (found * DRAFT_TOKENS)[:DRAFT_TOKENS]  # what repeats at the end goes on
        return []


class AcceptanceStats:
    """Whether drafting gains time: running means of the seconds a verification takes and the tokens it gives."""

    def __init__(self) -> None:
        self.seconds = self.tokens = 0.0
        self._checks = self._passed = 0

    def worthwhile(self, token_seconds: float) -> bool:
        """Whether to verify a draft if one token takes this long; now and then True although it did not pay, as a
        probe."""
        if self._checks < _FIRST_CHECKS or self.tokens * token_seconds > self.seconds:
            return True
        self._passed += 1
        return self._passed % _AGAIN == 0

    def update(self, seconds: float, tokens: int) -> None:
        """Record the duration of a verification and the number of tokens it gave."""
        self._checks += 1
        if self._checks <= _WARM_UPS:
            return
        share = 1 / min(self._checks - _WARM_UPS, _LAST_CHECKS)
        self.seconds += share * (seconds - self.seconds)
        self.tokens += share * (tokens - self.tokens)
