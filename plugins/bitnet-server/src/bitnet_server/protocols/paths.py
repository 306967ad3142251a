"""The paths of other APIs than OpenAI's chats and completions, and the functions that answer them."""

from __future__ import annotations

from collections.abc import Callable

from bitnet_server.call import Call
from bitnet_server.response import Document
from bitnet_server.schema import parse
from bitnet_server.service import Service

# The modules of the APIs are imported by their first request: they take long, and the server listens meanwhile.


def _messages(service: Service, body: bytes) -> Call:
    from bitnet_server.protocols.messages import MessagesCall, MessagesRequest

    return MessagesCall(service, parse(body, MessagesRequest))


def _count_tokens(service: Service, body: bytes) -> Document:
    from bitnet_server.protocols.messages import CountRequest, count_tokens

    return count_tokens(service, parse(body, CountRequest))


CALLS: dict[str, Callable[[Service, bytes], Call]] = {
    "/v1/messages": _messages,
}
"""POST paths that generate text."""

POSTS: dict[str, Callable[[Service, bytes], Document]] = {
    "/v1/messages/count_tokens": _count_tokens,
}
"""POST paths that answer from the body alone; the functions run in a worker thread."""

GETS: dict[str, Callable[[Service], Document]] = {}
"""GET paths without parameters."""
