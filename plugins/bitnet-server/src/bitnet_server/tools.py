"""The tools of a chat request: those that may be called, and the grammar of an answer with calls.

A call is {"name": ..., "arguments": {...}}, one a line, or the same between <tool_call> tags. With tool_choice "auto"
an answer that begins with a brace or holds a tag has calls, any other is text; "required" and named tools leave only
calls.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bitnet_core.structured import JSON_STYLE, Grammar, checked_schema
from bitnet_hal.errors import UsageError

from bitnet_server.errors import ApiError
from bitnet_server.schema import AllowedTools, ChatRequest, Function, NamedTool, Tool

OPENING: Final = "<tool_call>"
CLOSING: Final = "</tool_call>"

_MORE: Final = '("\\n" {}){{0,31}}'
"""Further calls of an answer."""

_TAGGED: Final = 'tagged: "<tool_call>\\n" call "\\n</tool_call>"\n'
"""The rule of a call between tags."""

_BLANK: Final = r"""BLANK: /[ \t\r\n]{0,4}/
"""

_TEXT: Final = r"""mixed[suffix="<tool_call>\n"]: /([ \t\r\n]*[^{ \t\r\n](.|\n)*)?/
TEXT: /[ \t\r\n]*[^{ \t\r\n](.|\n)*/ & ~/(.|\n)*<tool_call>(.|\n)*/
"""
"""Text up to the first tag, and text without one."""

_MODES: Final = ("none", "auto", "required", "any")
"""Values of tool_choice that name no tool, or types of one that is an object; "any" is Anthropic's and Mistral's word
for "required"."""

_NAMING: Final = ("function", "tool")
"""Types of a tool_choice that names a tool."""

ANY_OBJECT: Final = {"type": "object"}
_NO_OBJECT: Final[dict[str, Any]] = {"type": "object", "allOf": [False]}
_NO_PARAMETERS: Final[dict[str, Any]] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool that may be called. index: its place in `tools`; schema: of its arguments, closed and without no-ops."""

    index: int
    function: Function
    schema: Mapping[str, Any]

    @property
    def head(self) -> str:
        """A call up to its arguments."""
        return f'{{"name": {json.dumps(self.function.name)}, "arguments": '

    def call(self) -> dict[str, Any]:
        """Return the schema of a call."""
        return {
            "type": "object",
            "properties": {"name": {"const": self.function.name}, "arguments": self._arguments()},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }

    def _arguments(self) -> dict[str, Any]:
        """Return the schema of the arguments as a document of its own: its references stay within it."""
        schema, address = dict(self.schema), f"https://tool-{self.index}.invalid/"
        old = schema.get("$id")
        if isinstance(old, str) and old:
            schema = _readdressed(schema, old.split("#")[0], address)
        if "$ref" in schema or schema.get("type") != "object":
            # draft 7 ignores what stands beside a $ref
            parts = {key: schema.pop(key) for key in list(schema) if key not in ("$defs", "definitions", "$schema")}
            parts.pop("$id", None)
            schema["allOf"] = [parts, ANY_OBJECT] if parts else [ANY_OBJECT]
        return {**schema, "$id": address}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The tools of a request. tools: those that may be called; must: one of them has to be called; parallel: an answer
    may have several calls; relaxed: notes about keywords that are not enforced."""

    tools: tuple[CallableTool, ...] = ()
    must: bool = False
    parallel: bool = True
    relaxed: tuple[str, ...] = ()

    @classmethod
    def of(cls, request: ChatRequest, *, trained: bool = False) -> ToolChoice:
        """Build from the fields tools and tool_choice. Raises ApiError 400 if they do not match.

        trained: the model was trained to call tools, and so makes several calls unless the request forbids it; others
        only if the request asks for them.
        """
        functions = [_function(at, tool) for at, tool in enumerate(request.tools or ())]
        names = [function.name for function in functions]
        allowed, must = _allowed(request.tool_choice, names)
        tools = [_tool(at, function) for at, function in enumerate(functions) if function.name in allowed]
        parallel = trained if request.parallel_tool_calls is None else request.parallel_tool_calls
        named = isinstance(request.tool_choice, NamedTool) and request.tool_choice.type in _NAMING
        return cls(tuple(tools), must, parallel and not named)

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions that may be called."""
        return tuple(tool.function for tool in self.tools)

    def grammar(self, answer: Grammar | None = None) -> Grammar | None:
        """Return the grammar of an answer; None if there are no tools. answer: the grammar of an answer without calls,
        which is any text otherwise. Raises ApiError 400 if that is a Lark grammar, which cannot be a part of another.
        """
        if not self.tools:
            return answer
        if answer is not None and answer.kind == "lark" and not self.must:
            raise ApiError(400, "tools and a grammar exclude each other here", param="grammar")
        more = _MORE if self.parallel else ""
        tagged = more.format("tagged")
        calls = f"(call {more.format('call')} | tagged {tagged})"
        if self.must:
            start, terms = calls, ""
        elif answer is not None:
            start, terms = f"BLANK {calls} | answer", f"{_BLANK}answer: {_term(answer)}\n"
        else:
            start, terms = f'BLANK {calls} | TEXT | mixed call "\\n</tool_call>" {tagged} | ""', _BLANK + _TEXT
        lark = f"start: {start}\n{_TAGGED}{terms}call: %json {_styled(self._calls())}\n"
        return Grammar("lark", lark, ("", *(tool.head for tool in self.tools)))

    def _calls(self) -> dict[str, Any]:
        calls = [tool.call() for tool in self.tools]
        return calls[0] if len(calls) == 1 else {"anyOf": calls}


def _allowed(chosen: str | NamedTool | None, names: list[str]) -> tuple[list[str], bool]:
    """Return the names of the tools that may be called, and whether one has to be."""
    if isinstance(chosen, NamedTool) and chosen.type in _MODES:
        chosen = chosen.type
    chosen = "required" if chosen == "any" else chosen
    must = chosen == "required"
    if isinstance(chosen, NamedTool):
        wanted, must = _named(chosen)
        missing = next((name for name in wanted if name not in names), None)
        if missing is not None:
            raise ApiError(400, f"tool_choice names {missing!r}, which tools lack", param="tool_choice")
        return wanted, must
    if chosen not in (None, *_MODES):
        raise ApiError(400, "tool_choice must be none, auto, required or a function", param="tool_choice")
    if must and not names:
        raise ApiError(400, "tool_choice is required, but there are no tools", param="tool_choice")
    return [] if chosen == "none" else names, must


def _named(chosen: NamedTool) -> tuple[list[str], bool]:
    """Return the names in a tool_choice that is an object, and whether one has to be called."""
    allowed = chosen.allowed_tools
    if allowed is None and chosen.mode is not None and chosen.tools is not None:
        allowed = AllowedTools(chosen.mode, chosen.tools)
    if chosen.type in _NAMING and (name := chosen.function.name if chosen.function else chosen.name) is not None:
        return [name], True
    if chosen.type != "allowed_tools" or allowed is None:
        raise ApiError(400, "tool_choice must name a function, or be of type allowed_tools", param="tool_choice")
    if allowed.mode not in ("auto", "required") or not allowed.tools:
        raise ApiError(400, "allowed_tools needs tools, and mode auto or required", param="tool_choice")
    return [(tool.function.name if tool.function else tool.name) or "" for tool in allowed.tools], (
        allowed.mode == "required"
    )


def _function(index: int, tool: Tool) -> Function:
    if tool.type != "function":
        raise ApiError(400, f"tools[{index}]: only tools of type function can be called", param="tools")
    if tool.function is not None:
        return tool.function
    if tool.name is None:
        raise ApiError(400, f"tools[{index}] has no function", param="tools")
    return Function(tool.name, tool.description, tool.parameters, tool.strict)


def _tool(index: int, function: Function) -> CallableTool:
    """Raises ApiError 400 for parameters that are too deep or too large."""
    try:
        schema = checked_schema(_object(function.parameters or _NO_PARAMETERS))
    except UsageError as exc:
        raise ApiError(400, f"tools[{index}].function.parameters: {exc}", param="tools") from exc
    return CallableTool(index, function, _NO_OBJECT if schema is False else schema)


def _object(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema with the type that arguments always have."""
    kind = schema.get("type")
    if (kind is None and "$ref" not in schema) or (isinstance(kind, list) and "object" in kind):
        return {**schema, "type": "object"}
    return schema


def _readdressed(value: Any, old: str, new: str) -> Any:
    """Return a schema whose $id and references begin with another address."""
    if isinstance(value, list):
        return [_readdressed(item, old, new) for item in value]
    if not isinstance(value, dict):
        return value
    changed = {key: _readdressed(item, old, new) for key, item in value.items()}
    for key in ("$id", "$ref"):
        if isinstance(text := value.get(key), str) and old and text.split("#")[0] == old:
            changed[key] = new + text[len(old) :]
    return changed


def _styled(schema: dict[str, Any]) -> str:
    return json.dumps({**schema, "x-guidance": JSON_STYLE})


def _term(answer: Grammar) -> str:
    """Return a grammar as the right side of a Lark rule."""
    if answer.kind == "json":
        return f"%json {_styled(json.loads(answer.text))}"
    return "/" + answer.text.replace("\\/", "/").replace("/", "\\/").replace("\n", "\\n") + "/"
