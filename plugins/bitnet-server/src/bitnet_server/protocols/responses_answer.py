"""The answer of OpenAI's POST /v1/responses, by its reference of streaming events."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

import msgspec

from bitnet_server.errors import ApiError
from bitnet_server.framing import NamedEvents
from bitnet_server.protocols.chunks import CallDelta, ChunkChoice
from bitnet_server.response import Document, usage

if TYPE_CHECKING:
    from bitnet_server.protocols.responses import ResponsesCall


class ResponsesAnswer(NamedEvents):
    """The events of one response (see translated.Answer): items of reasoning, text and calls, one after another."""

    def __init__(self, call: ResponsesCall) -> None:
        self._call = call
        self._id = f"resp_{secrets.token_hex(24)}"
        self._created = int(time.time())
        self._sequence = 0
        self._output: list[Document] = []
        self._open: object = None  # the kind of the last item, and the index of its call
        self._status = "in_progress"
        self._error: Document | None = None

    def start(self) -> list[bytes]:
        """Return response.created and response.in_progress."""
        return [self._event(f"response.{kind}", response=self._response()) for kind in ("created", "in_progress")]

    def push(self, choice: ChunkChoice) -> list[bytes]:
        """Return the events of a chunk."""
        delta, events = choice.delta, []
        scores = (choice.logprobs.content if choice.logprobs else None) or []
        if delta.reasoning_content:
            events += self._reasoning(delta.reasoning_content)
        if delta.content or scores:
            events += self._text(delta.content or "", scores)
        for part in delta.tool_calls or ():
            events += self._function_call(part)
        if choice.finish_reason is not None:
            self._status = "incomplete" if choice.finish_reason == "length" else "completed"
            events += self._close(self._status)
        return events

    def end(self) -> list[bytes]:
        """Keep the response unless the request forbids it; return response.completed or response.incomplete."""
        response = self._response()
        if self._call.responses_request.store is not False:
            self._call.service.kept_responses.keep(response, [*self._call.items, *self._output])
        return [self._event(f"response.{self._status}", response=response)]

    def document(self) -> Document:
        """Return the response as it is after `end`."""
        return self._response()

    def failed(self, error: ApiError) -> bytes:
        """Return the event response.failed."""
        self._status = "failed"
        code = "server_error" if error.status >= 500 else "invalid_prompt"
        self._error = {"code": code, "message": error.message}
        return self.frame([self._event("response.failed", response=self._response())])

    def _reasoning(self, text: str) -> list[bytes]:
        part: Document = {"type": "reasoning_text", "text": ""}
        events = self._begin("reasoning", {"type": "reasoning", "id": _id("rs"), "summary": []}, part)
        self._output[-1]["content"][0]["text"] += text
        return [*events, self._part_event("response.reasoning_text.delta", delta=text)]

    def _text(self, text: str, scores: list[Document]) -> list[bytes]:
        part: Document = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        events = self._begin("message", {"type": "message", "id": _id("msg"), "role": "assistant"}, part)
        kept = self._output[-1]["content"][0]
        kept["text"] += text
        kept["logprobs"] += scores
        return [*events, self._part_event("response.output_text.delta", delta=text, logprobs=scores)]

    def _function_call(self, part: CallDelta) -> list[bytes]:
        item = {"type": "function_call", "id": _id("fc"), "call_id": part.id, "name": part.function.name}
        events = self._begin(("function_call", part.index), {**item, "arguments": ""}, None)
        text = part.function.arguments
        if text:
            self._output[-1]["arguments"] += text
            events.append(self._item_event("response.function_call_arguments.delta", delta=text))
        return events

    def _begin(self, kind: object, item: Document, part: Document | None) -> list[bytes]:
        """Return the events between two items; [] if the last item is of this kind. part: of its content."""
        if self._open == kind:
            return []
        events = self._close("completed")
        self._open = kind
        item["status"] = "in_progress"
        if part is not None:
            item["content"] = []
        self._output.append(item)
        events.append(self._event("response.output_item.added", output_index=len(self._output) - 1, item=item))
        if part is not None:
            item["content"].append(part)
            events.append(self._part_event("response.content_part.added", part=part))
        return events

    def _close(self, status: str) -> list[bytes]:
        """Return the events that end the last item."""
        if self._open is None:
            return []
        self._open = None
        item = self._output[-1]
        events = []
        if item["type"] == "function_call":
            done = {"name": item["name"], "arguments": item["arguments"]}
            events.append(self._item_event("response.function_call_arguments.done", **done))
        else:
            events += self._end_part(item["content"][0])
        item["status"] = status
        events.append(self._event("response.output_item.done", output_index=len(self._output) - 1, item=item))
        return events

    def _end_part(self, part: Document) -> list[bytes]:
        if part["type"] == "output_text":
            done = {"text": part["text"], "logprobs": part["logprobs"]}
        else:
            done = {"text": part["text"]}
        return [
            self._part_event(f"response.{part['type']}.done", **done),
            self._part_event("response.content_part.done", part=part),
        ]

    def _item_event(self, kind: str, **fields: object) -> bytes:
        index = len(self._output) - 1
        return self._event(kind, item_id=self._output[index]["id"], output_index=index, **fields)

    def _part_event(self, kind: str, **fields: object) -> bytes:
        return self._item_event(kind, content_index=0, **fields)

    def _event(self, kind: str, **fields: object) -> bytes:
        number = self._sequence
        self._sequence += 1
        return self.event(kind, sequence_number=number, **fields)

    def _response(self) -> Document:
        """Return the response as it is now."""
        given, over = self._call.responses_request, self._status in ("completed", "incomplete")
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if over else None,
            "status": self._status,
            "background": False,
            "error": self._error,
            "incomplete_details": {"reason": "max_output_tokens"} if self._status == "incomplete" else None,
            "instructions": given.instructions,
            "max_output_tokens": given.max_output_tokens,
            "metadata": given.metadata or {},
            "model": self._call.service.names[0],
            "output": self._output,
            "parallel_tool_calls": given.parallel_tool_calls is not False,
            "previous_response_id": given.previous_response_id,
            "reasoning": msgspec.to_builtins(given.reasoning) or {"effort": None, "summary": None},
            "store": given.store is not False,
            "temperature": given.temperature,
            "text": {"format": (given.text.format if given.text else None) or {"type": "text"}},
            "tool_choice": given.tool_choice or "auto",
            "tools": given.tools or [],
            "top_p": given.top_p,
            "truncation": given.truncation or "disabled",
            "usage": self._usage() if over else None,
        }

    def _usage(self) -> Document:
        counts = usage(self._call.states, 1)
        return {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": counts["prompt_tokens_details"],
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self._call.reasoning_tokens},
            "total_tokens": counts["total_tokens"],
        }


def _id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(24)}"
