"""Tool calls with any model: tools are described in the system message, calls are JSON that a grammar enforces.

The method is llama.cpp's generic handler: {"name": ..., "arguments": {...}}. With tool_choice "auto" an answer that
begins with a brace is a call, any other is text; "required" and named tools leave only calls.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from bitnet_core.structured import Grammar, json_grammar

from bitnet_server.errors import ApiError
from bitnet_server.schema import ChatRequest, Function, NamedTool, ToolCall

_BEGIN = re.compile(r'\{"name": ("(?:[^"\\]|\\.)*"), "arguments": ')


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The tools of a request. functions: those that may be called; must: one of them has to be called."""

    functions: tuple[Function, ...] = ()
    must: bool = False

    @classmethod
    def of(cls, request: ChatRequest) -> ToolChoice:
        """Build from the fields tools and tool_choice. Raises ApiError 400 if they do not match."""
        functions = tuple(tool.function for tool in request.tools or ())
        if any(tool.type != "function" for tool in request.tools or ()):
            raise ApiError(400, "only tools of type function can be called", param="tools")
        chosen = request.tool_choice
        if isinstance(chosen, NamedTool):
            named = tuple(function for function in functions if function.name == chosen.function.name)
            if not named:
                raise ApiError(
                    400, f"tool_choice names {chosen.function.name!r}, which tools lack", param="tool_choice"
                )
            return cls(named, must=True)
        if chosen not in (None, "none", "auto", "required"):
            raise ApiError(400, "tool_choice must be none, auto, required or a function", param="tool_choice")
        if chosen == "required" and not functions:
            raise ApiError(400, "tool_choice is required, but there are no tools", param="tool_choice")
        return cls() if chosen == "none" else cls(functions, must=chosen == "required")

    def grammar(self) -> Grammar | None:
        """Return the grammar of an answer."""
        if not self.functions:
            return None
        calls = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": function.name},
                    "arguments": function.parameters or {"type": "object"},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for function in self.functions
        ]
        schema: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
        grammar = json_grammar(schema)
        if self.must:
            return grammar
        options = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
        inner = json.dumps(json.loads(grammar.text) | {"x-guidance": options})
        return Grammar("lark", f"start: call | TEXT\nTEXT: /[^{{](.|\\n)*/\ncall: %json {inner}\n")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an answer: text, and the tool_calls of a delta."""

    text: str = ""
    calls: tuple[dict[str, Any], ...] = ()


class Parser:
    """An incremental parser that separates text from tool calls."""

    def __init__(self, choice: ToolChoice) -> None:
        self._plain = not choice.functions
        self._held = ""
        self._called = False

    def push(self, text: str, *, last: bool) -> Part:
        """Parse more of the answer."""
        if self._plain:
            return Part(text)
        self._held += text
        if not self._called:
            if self._held and not self._held.startswith("{"):
                self._plain = True
                return Part(self._taken(len(self._held)))
            match = _BEGIN.match(self._held)
            if match is None:
                return Part(self._taken(len(self._held))) if last else Part()
            self._called, name = True, json.loads(match[1])
            self._taken(match.end())
            begin = {
                "index": 0,
                "id": f"call_{secrets.token_hex(12)}",
                "type": "function",
                "function": {"name": name, "arguments": ""},
            }
            return Part(calls=(begin, *self._arguments(last)))
        return Part(calls=self._arguments(last))

    def reason(self, finish: str) -> str:
        """Return the choice's finish_reason."""
        return "tool_calls" if self._called and finish == "stop" else finish

    def _arguments(self, last: bool) -> tuple[dict[str, Any], ...]:
        """Return the text without a brace at its end, which may close the call."""
        keep = 0 if not self._held.endswith("}") else 1
        text = self._taken(len(self._held) - keep)
        if last:
            self._held = ""
        return ({"index": 0, "function": {"arguments": text}},) if text else ()

    def _taken(self, count: int) -> str:
        taken, self._held = self._held[:count], self._held[count:]
        return taken


def to_tool_calls(calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tool_calls of a message from those of its deltas."""
    first = calls[0]
    arguments = "".join(call["function"]["arguments"] for call in calls)
    function = {"name": first["function"]["name"], "arguments": arguments}
    return [{"id": first["id"], "type": "function", "function": function}]


def render_call(call: ToolCall) -> str:
    """Render a call of an earlier answer as the model wrote it."""
    return f'{{"name": {json.dumps(call.function.name)}, "arguments": {call.function.arguments}}}'


def with_tool_prompt(messages: list[dict[str, Any]], choice: ToolChoice) -> list[dict[str, Any]]:
    """Return the messages with the tools described in the system message."""
    if not choice.functions:
        return messages
    lines = [json.dumps(msgspec.to_builtins(function), ensure_ascii=False) for function in choice.functions]
    text = (
        "You can call these functions:\n"
        + "\n".join(lines)
        + '\nTo call one, answer with nothing but JSON: {"name": the function\'s name, "arguments": its arguments}.'
    )
    if messages[0]["role"] == "system":
        return [{"role": "system", "content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]
