"""The protocol of a call: a parsed request for texts, and the formatting of its response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bitnet_server.request_state import Delta, GenerationRequest, RequestState
from bitnet_server.response import Document
from bitnet_server.service import Service
from bitnet_server.streams import ResponseFormatter


class Call(Protocol):
    """A parsed request for texts."""

    states: Sequence[RequestState]

    @property
    def service(self) -> Service:
        """The model's service."""

    @property
    def quick(self) -> bool:
        """True if `generations` takes about a millisecond, so that it may run on the event loop."""

    def generations(self) -> list[GenerationRequest]:
        """Build the generation requests. Runs in a worker thread unless it is quick."""

    def headers(self) -> dict[str, str]:
        """Return headers of the response."""

    def formatter(self) -> ResponseFormatter:
        """Build the formatter of a streamed response."""

    def to_response(self, deltas: Sequence[Delta]) -> Document:
        """Build the whole response."""
