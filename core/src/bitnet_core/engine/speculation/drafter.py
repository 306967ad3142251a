"""The interface of drafters, which propose draft tokens for the model to verify."""

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
        """Return draft tokens to follow the current tokens of each request, at most its limit. Requests without any are
        left out. The limits are 1 or more."""

    def committed(self, request: Request, row: int, drafted: int, accepted: int) -> None:
        """Report the result of a verification: the first `accepted` of `drafted` tokens were right and have been
        appended to the request, followed by the token that the model chose. row: index in the step of the request's
        first row, the one before its draft tokens."""

    def close(self) -> None:
        """Free everything; may be called twice."""
