"""Values by request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from bitnet_core.engine.request.request import Request

T = TypeVar("T")

_MOST = 64
"""Number of values from which on those of ended requests are dropped."""


class PerRequest(dict[Request, T]):
    """Values that are made at their first use. make: returns that of a request.

    It is no WeakKeyDictionary, because a step with draft tokens looks up some values of each request, and such a lookup
    takes ten times as long.
    """

    def __init__(self, make: Callable[[Request], T]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, request: Request) -> T:
        if len(self) >= _MOST:
            for one in [one for one in self if one.finish_reason is not None]:
                del self[one]
        value = self[request] = self._make(request)
        return value
