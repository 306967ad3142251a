"""The form of a streamed response: server-sent events, or JSON lines."""

from __future__ import annotations

from typing import Protocol

import msgspec

from bitnet_server.error_shapes import anthropic_error
from bitnet_server.errors import ApiError


class Framing(Protocol):
    """The protocol of a streamed response's form."""

    media_type: bytes
    keep_alive: bytes
    """Sent in long silences."""
    last: bytes

    def frame(self, documents: list[bytes]) -> bytes:
        """Return the bytes of these JSON documents in the stream."""

    def failed(self, error: ApiError) -> bytes:
        """Return the bytes that end a stream after an error."""


class ServerSentEvents:
    """The framing of OpenAI's chats: unnamed events, and [DONE] at the end."""

    media_type = b"text/event-stream; charset=utf-8"
    keep_alive = b": keep-alive\n\n"
    last = b"data: [DONE]\n\n"

    def frame(self, documents: list[bytes]) -> bytes:
        """Return the bytes of these JSON documents in the stream."""
        if len(documents) == 1:  # nearly always
            return b"data: " + documents[0] + b"\n\n"
        return b"".join(b"data: " + document + b"\n\n" for document in documents)

    def failed(self, error: ApiError) -> bytes:
        """Return the bytes that end a stream after an error."""
        return self.frame([msgspec.json.encode(error.document())])


class NamedEvents(ServerSentEvents):
    """Server-sent events that are named by the field `type` of their documents."""

    last = b""

    def event(self, kind: str, **fields: object) -> bytes:
        """Return the document of an event."""
        return msgspec.json.encode({"type": kind, **fields})

    def frame(self, documents: list[bytes]) -> bytes:
        """Return the bytes of these events, whose `type` is their first field."""
        return b"".join(b"event: %s\ndata: %s\n\n" % (_TYPE.decode(one).type.encode(), one) for one in documents)


class AnthropicEvents(NamedEvents):
    """The events of Anthropic's API."""

    keep_alive = b'event: ping\ndata: {"type":"ping"}\n\n'

    def failed(self, error: ApiError) -> bytes:
        """Return the error event."""
        return self.frame([msgspec.json.encode(anthropic_error(error))])


class JsonLines:
    """The framing of Ollama's API: one document per line. It has no comments, so nothing is sent in long silences."""

    media_type = b"application/x-ndjson"
    keep_alive = b""
    last = b""

    def frame(self, documents: list[bytes]) -> bytes:
        """Return the bytes of these JSON documents in the stream."""
        return b"".join(document + b"\n" for document in documents)

    def failed(self, error: ApiError) -> bytes:
        """Return the bytes that end a stream after an error."""
        return self.frame([msgspec.json.encode({"error": error.message})])


class _Typed(msgspec.Struct):
    type: str


_TYPE = msgspec.json.Decoder(_Typed)
