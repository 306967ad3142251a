"""A parsed request, before its model is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from starlette.responses import Response

from bitnet_server.framing import Framing, ServerSentEvents
from bitnet_server.service import Service

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ParsedRequest(Generic[T]):
    """A parsed request. model: the name in it. build: makes the call, or the answer, with the model's service.

    stream: it asks for a stream, and framing is its form until the call is made. keep_alive: seconds for which the
    model stays loaded afterwards. unloaded: the answer if the model is not loaded, of a request that only unloads it.
    """

    model: str | None
    build: Callable[[Service], T]
    stream: bool = False
    framing: Framing = ServerSentEvents()  # noqa: RUF009 - it has no state
    keep_alive: float | None = None
    unloaded: Response | None = None
