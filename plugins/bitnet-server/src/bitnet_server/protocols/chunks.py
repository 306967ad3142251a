"""The chunks of a chat or completion, read back with their types: all that other protocols know about an answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct


class CallFunction(Struct):
    """The function of a tool call's delta."""

    name: str | None = None
    arguments: str = ""


class CallDelta(Struct):
    """A part of a tool call; its first part has the id and the name."""

    index: int = 0
    id: str | None = None
    function: CallFunction = msgspec.field(default_factory=CallFunction)


class ChunkDelta(Struct):
    """A part of a message."""

    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallDelta] | None = None


class ChunkLogprobs(Struct):
    """The log probabilities of a part of a message."""

    content: list[dict[str, Any]] | None = None


class ChunkChoice(Struct):
    """The only choice of a chunk. text: of a completion, which has no delta."""

    delta: ChunkDelta = msgspec.field(default_factory=ChunkDelta)
    text: str | None = None
    logprobs: ChunkLogprobs | None = None
    finish_reason: str | None = None


class _Chunk(Struct):
    choices: list[ChunkChoice]


_DECODER = msgspec.json.Decoder(_Chunk)


def read_chunks(chunks: list[bytes]) -> Iterator[ChunkChoice]:
    """Yield the choice of every chunk."""
    for chunk in chunks:
        yield from _DECODER.decode(chunk).choices
