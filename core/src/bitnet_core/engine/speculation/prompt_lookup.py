"""Draft tokens by prompt lookup (n-gram speculation, Saxena 2023): those that followed the last n-gram earlier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bitnet_core.engine.request.per_request import PerRequest
from bitnet_core.engine.request.request import Request

LENGTHS = (4, 3)
"""Lengths of the n-grams that are looked up, the longest first."""


class NgramIndex:
    """An index of the positions after each n-gram of a request's tokens, to which tokens may only be appended."""

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}
        self._seen = 0

    def following(self, tokens: Sequence[int], count: int) -> list[int]:
        """Return `count` tokens that followed the latest earlier occurrence of the last ones; [] if there is none."""
        for end in range(self._seen, len(tokens)):
            for length in LENGTHS:
                if end >= length:
                    self._after[tuple(tokens[end - length : end])] = end
        self._seen = len(tokens)
        for length in LENGTHS:
            at = self._after.get(tuple(tokens[-length:]))
            if at is not None and len(tokens) >= length:
                found = list(tokens[at : at + count])
                return (found * count)[:count]  # continues a repetition that reaches the end of the tokens
        return []


class PromptLookup:
    """A drafter that copies earlier tokens of the request."""

    kind = "lookup"

    def __init__(self) -> None:
        self._indices = PerRequest(lambda _: NgramIndex())

    def propose(self, limits: Mapping[Request, int]) -> dict[Request, list[int]]:
        """Return the tokens after an earlier occurrence of the last ones, for requests that have one."""
        drafts: dict[Request, list[int]] = {}
        for request, limit in limits.items():
            if found := self._indices[request].following(request.tokens, limit):
                drafts[request] = found
        return drafts

    def committed(self, request: Request, row: int, drafted: int, accepted: int) -> None:
        """Do nothing: `propose` updates the index from the request's tokens."""

    def close(self) -> None:
        """Do nothing: the index takes no device memory."""
