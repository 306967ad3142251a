"""uvicorn's HTTP protocol with limits that it lacks: size and time of a request's head, number of connections."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from bitnet_server.errors import ApiError

MAX_HEAD = 64 << 10  # bytes of request line and headers
HEAD_SECONDS = 10.0
MAX_CONNECTIONS = 1024


_SEPARATORS = 4  # bytes of ": " and of the line's end
_CHUNK_HEAD = 32  # bytes around a chunk, which are not counted

_UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)

ABORT = "bitnet.abort"
"""The ASGI extension that ends a connection at once."""


class _Unchunked:
    """The responses of a request by HTTP/1.0, which knows no chunks (RFC 9112, 6.1): the connection's end ends one."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle, self._send = cycle, cycle.send
        self._measured = True

    async def send(self, message: Any) -> None:
        """Send an ASGI message."""
        if message["type"] == "http.response.start":
            self._measured = any(name.lower() == b"content-length" for name, _ in message["headers"])
            if not self._measured:
                self._cycle.chunked_encoding = False
                self._cycle.keep_alive = False
        elif not self._measured:
            self._cycle.expected_content_length = len(message.get("body", b""))
        await self._send(message)


class _HeadWithBody:
    """The transport of a response, which keeps the head until the first part of the body comes: a call of the system
    costs about as much as the rest of a short answer."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle, self._transport = cycle, cycle.transport
        self._head: bytes | None = None
        self._begun = cycle.scope["method"] == "HEAD"  # no body follows

    def write(self, data: bytes) -> None:
        """Write data, or keep it if it is the head."""
        if not self._begun and self._cycle.response_started:  # it was "100 Continue" before
            self._begun, self._head = True, data
        else:
            self._transport.write(self._taken() + data)

    def close(self) -> None:
        """Write what is kept, and close the connection."""
        if head := self._taken():
            self._transport.write(head)
        self._transport.close()

    def is_closing(self) -> bool:
        """Return True if the connection is closing."""
        return self._transport.is_closing()

    def _taken(self) -> bytes:
        head, self._head = self._head or b"", None
        return head


class GuardedProtocol(HttpToolsProtocol):
    """A protocol that closes connections whose request heads are too long or too slow, and those beyond
    MAX_CONNECTIONS.
    """

    _timer: asyncio.TimerHandle | None = None
    _fed = 0  # bytes since the head began; 0 outside a head
    _overhead = 0  # bytes after the head that are not the body's, less those that chunks may have
    _refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused or self.parser is None:
            return
        if self._timer is None and self._idle():
            self._arm()  # the head of another request on the same connection
        if self._timer is not None:
            self._fed += len(data)
            data = _without_upgrade(data)
        else:
            self._overhead += len(data)
        super().data_received(data)
        if self._timer is None and self._overhead > MAX_HEAD and not self._refused:
            self._refuse(431, "the request's chunk extensions or trailers are too long")
        if self._timer is not None and self._fed > MAX_HEAD and not self._refused:
            self._refuse(431, "the request's headers are too long")

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + _SEPARATORS for name, value in self.headers)
        self._disarm()
        if size > MAX_HEAD:
            self._refuse(431, "the request's headers are too long")
        elif not self._refused:
            self._overhead = 0
            super().on_headers_complete()
            self._prepare(self.cycle)

    def _prepare(self, cycle: RequestResponseCycle) -> None:
        """Let a response end its connection, and send one to an HTTP/1.0 client without chunks."""
        cycle.scope["extensions"] = {ABORT: {"now": self.transport.abort}}
        cycle.transport = _HeadWithBody(cycle)  # type: ignore[assignment]  # as far as a cycle uses it
        if cycle.scope["http_version"] == "1.0":
            cycle.send = _Unchunked(cycle).send  # type: ignore[method-assign]  # uvicorn has no hook

    def on_body(self, body: bytes) -> None:
        self._overhead -= len(body)
        if not self._refused:
            super().on_body(body)

    def on_chunk_header(self) -> None:
        self._overhead -= _CHUNK_HEAD

    def on_message_complete(self) -> None:
        if not self._refused:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is not HTTP/1.1")

    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _arm(self) -> None:
        self._timer = self.loop.call_later(HEAD_SECONDS, self._refuse, 408, "the request came too slowly")

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._fed = None, 0

    def _refuse(self, status: int, message: str) -> None:
        self._refused = True
        self._disarm()
        body = msgspec.json.encode(ApiError(status, message).document())
        head: list[Any] = [
            STATUS_LINE[status],
            b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body),
        ]
        self.transport.write(b"".join([*head, body]))
        self.transport.close()


def _without_upgrade(data: bytes) -> bytes:
    """Return the beginning of a request without the offer of another protocol, which a server may ignore.

    Java's HTTP client offers HTTP/2 in every request, and httptools reads no body after an offer.
    """
    head, end, body = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"", head) + end + body
