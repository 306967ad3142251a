"""The answer of Anthropic's POST /v1/messages, by its documentation of streams."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

from bitnet_server.framing import AnthropicEvents
from bitnet_server.protocols.chunks import CallDelta, ChunkChoice
from bitnet_server.response import Document, usage

if TYPE_CHECKING:
    from bitnet_server.protocols.translated import TranslatedCall

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessagesAnswer(AnthropicEvents):
    """The events of one answer (see translated.Answer): blocks of thinking, text and tool use, one after another."""

    def __init__(self, call: TranslatedCall) -> None:
        self._call = call
        self._blocks: list[Document] = []
        self._open: object = None  # the kind of the last block, and the index of its tool call
        self._arguments = ""
        self._reason = "stop"
        self._id = f"msg_{secrets.token_hex(12)}"

    def start(self) -> list[bytes]:
        """Return the event message_start."""
        return [self.event("message_start", message=self._message())]

    def push(self, choice: ChunkChoice) -> list[bytes]:
        """Return the events of a chunk."""
        delta, events = choice.delta, []
        if delta.reasoning_content:
            events += self._thinking(delta.reasoning_content)
        if delta.content:
            events += self._text(delta.content)
        for part in delta.tool_calls or ():
            events += self._tool_use(part)
        self._reason = choice.finish_reason or self._reason
        return events

    def end(self) -> list[bytes]:
        """Return the end of the last block, message_delta and message_stop."""
        message = self._message()
        delta = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
        return [
            *self._close(),
            self.event("message_delta", delta=delta, usage=message["usage"]),
            self.event("message_stop"),
        ]

    def document(self) -> Document:
        """Return the whole message."""
        return self._message()

    def _thinking(self, text: str) -> list[bytes]:
        events = self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        self._blocks[-1]["thinking"] += text
        return [*events, self._delta({"type": "thinking_delta", "thinking": text})]

    def _text(self, text: str) -> list[bytes]:
        events = self._begin("text", {"type": "text", "text": ""})
        self._blocks[-1]["text"] += text
        return [*events, self._delta({"type": "text_delta", "text": text})]

    def _tool_use(self, part: CallDelta) -> list[bytes]:
        block: Document = {"type": "tool_use", "id": part.id, "name": part.function.name, "input": {}}
        events = self._begin(("tool_use", part.index), block)
        if part.function.arguments:
            self._arguments += part.function.arguments
            events.append(self._delta({"type": "input_json_delta", "partial_json": part.function.arguments}))
        return events

    def _begin(self, kind: object, block: Document) -> list[bytes]:
        """Return the events between two blocks; [] if the last block is of this kind."""
        if self._open == kind:
            return []
        events = self._close()
        events.append(self.event("content_block_start", index=len(self._blocks), content_block=block))
        self._blocks.append(block)
        self._open = kind
        return events

    def _close(self) -> list[bytes]:
        if self._open is None:
            return []
        events = []
        block = self._blocks[-1]
        if block["type"] == "thinking":
            events.append(self._delta({"type": "signature_delta", "signature": ""}))
        elif block["type"] == "tool_use":
            block["input"] = _object(self._arguments)
            self._arguments = ""
        self._open = None
        return [*events, self.event("content_block_stop", index=len(self._blocks) - 1)]

    def _delta(self, delta: Document) -> bytes:
        return self.event("content_block_delta", index=len(self._blocks) - 1, delta=delta)

    def _message(self) -> Document:
        counts = usage(self._call.states, 1)
        cached = counts["prompt_tokens_details"]["cached_tokens"]
        ended = all(state.over for state in self._call.states)
        stop = self._call.stop_string if ended else None
        reason = "stop_sequence" if stop is not None else _STOP_REASONS.get(self._reason, "end_turn")
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._call.service.names[0],
            "content": self._blocks,
            "stop_reason": reason if ended else None,
            "stop_sequence": stop,
            "usage": {
                "input_tokens": counts["prompt_tokens"] - cached,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": cached,
                "output_tokens": counts["completion_tokens"],
            },
        }


def _object(arguments: str) -> dict[str, Any]:
    """Return the arguments of a call; {} if max_tokens cut them off, as the type must be an object."""
    try:
        found = json.loads(arguments)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
