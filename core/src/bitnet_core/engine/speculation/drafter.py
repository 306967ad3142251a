"""The interface of drafters: a source of draft tokens, which the model verifies before it keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from bitnet_core.engine.request.request import Request


class Drafter(Protocol):
    """A source of draft tokens. kind: its value of the option `speculate`.

    A wrong draft token costs time and changes no text. The engine holds its lock during every call.
    """

    @property
    def kind(self) -> str: ...

    def propose(self, limits: Mapping[Request, int]) -> dict[Request, list[int]]:
        """Return the draft tokens that may follow the present tokens of each request, at most its limit; requests
        without any are left out. The limits are 1 or more."""

    def committed(self, request: Request, row: int, drafted: int, accepted: int) -> None:
        """Take the result of a verification: the first `accepted` of `drafted` tokens were right and are now among the
        request's tokens, as is the token that the model chose after them. row: place of the request's first row, the
        one before its draft tokens, in the step."""

    def close(self) -> None:
        """Free everything; may be called twice."""
