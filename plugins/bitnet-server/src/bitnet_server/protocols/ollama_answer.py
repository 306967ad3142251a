"""The answers of Ollama's /api/chat and /api/generate: one JSON document a line."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from bitnet_server.framing import JsonLines
from bitnet_server.protocols.chunks import CallDelta, ChunkChoice
from bitnet_server.request_state import Delta, now
from bitnet_server.response import Document

if TYPE_CHECKING:
    from bitnet_server.protocols.translated import TranslatedCall


class OllamaAnswer(JsonLines):
    """The lines of one answer (see translated.Answer). A tool call is sent whole, as its arguments are an object."""

    def __init__(self, call: TranslatedCall, *, chat: bool) -> None:
        self._call, self._chat = call, chat
        self._text, self._thinking = "", ""
        self._logprobs: list[Document] = []
        self._calls: list[Document] = []  # those that are whole
        self._parts: list[CallDelta] = []  # of the call under way
        self._reason = "stop"

    def start(self) -> list[bytes]:
        """Return no lines: Ollama has none without text."""
        return []

    def push(self, choice: ChunkChoice) -> list[bytes]:
        """Return the lines of a chunk."""
        lines = []
        text, thinking = choice.delta.content or choice.text or "", choice.delta.reasoning_content or ""
        scores = (choice.logprobs.content if choice.logprobs else None) or []
        if text or thinking or scores:
            self._text += text
            self._thinking += thinking
            self._logprobs += scores
            lines.append(self._line(text, thinking, [], scores))
        for part in choice.delta.tool_calls or ():
            if part.id is not None:
                lines += self._end_call()
            self._parts.append(part)
        if choice.finish_reason is not None:
            self._reason = "length" if choice.finish_reason == "length" else "stop"
            lines += self._end_call()
        return lines

    def end(self) -> list[bytes]:
        """Return the line with the durations."""
        return [msgspec.json.encode(self._document("", "", [], []) | self._figures())]

    def document(self) -> Document:
        """Return the whole response."""
        return self._document(self._text, self._thinking, self._calls, self._logprobs) | self._figures()

    def _end_call(self) -> list[bytes]:
        """Return the line of the call under way; its text, if max_tokens cut it off."""
        if not self._parts:
            return []
        name, call_id = self._parts[0].function.name, self._parts[0].id
        arguments = "".join(part.function.arguments for part in self._parts)
        self._parts = []
        try:
            called = json.loads(arguments)
        except ValueError:
            self._text += arguments
            return [self._line(arguments, "", [], [])]
        call = {"id": call_id, "function": {"index": len(self._calls), "name": name, "arguments": called}}
        self._calls.append(call)
        return [self._line("", "", [call], [])]

    def _line(self, text: str, thinking: str, calls: list[Document], logprobs: list[Document]) -> bytes:
        return msgspec.json.encode(self._document(text, thinking, calls, logprobs) | {"done": False})

    def _document(self, text: str, thinking: str, calls: list[Document], logprobs: list[Document]) -> Document:
        found: Document = {"model": self._call.service.names[0], "created_at": timestamp()}
        more: Document = {"thinking": thinking} if thinking else {}
        if calls:
            more["tool_calls"] = calls
        if self._chat:
            found["message"] = {"role": "assistant", "content": text, **more}
        else:
            found |= {"response": text, **more}
        return found | ({"logprobs": logprobs} if logprobs else {})

    def _figures(self) -> Document:
        (state,) = self._call.states
        request = state.request
        return {
            "done": True,
            "done_reason": self._reason,
            "total_duration": _nanoseconds(now() - state.created),
            "load_duration": 0,
            "prompt_eval_count": request.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(request.prefill_seconds),
            "eval_count": state.output.seen,
            "eval_duration": _nanoseconds(request.decode_seconds),
        }


class LoadFormatter(JsonLines):
    """The line that says that a model is loaded, or unloaded after it (see streams.ResponseFormatter)."""

    def __init__(self, model: str, *, chat: bool, unload: bool) -> None:
        self._model, self._chat = model, chat
        self._reason = "unload" if unload else "load"

    def start(self) -> list[bytes]:
        """Return no lines: Ollama has none without text."""
        return []

    def chunks(self, delta: Delta) -> list[bytes]:
        """Return no lines: Ollama has none without text."""
        return []

    def end(self) -> list[bytes]:
        """Return the line."""
        return [msgspec.json.encode(self.document())]

    def document(self) -> Document:
        """Return the line's document."""
        text: Document = {"message": {"role": "assistant", "content": ""}} if self._chat else {"response": ""}
        return {"model": self._model, "created_at": timestamp(), **text, "done": True, "done_reason": self._reason}


def timestamp(seconds: float | None = None) -> str:
    """Return a time in Unix seconds, or the present one, as RFC 3339 writes it."""
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat().replace("+00:00", "Z")


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
