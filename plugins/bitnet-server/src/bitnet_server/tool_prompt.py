"""The description of tools for the model: in the form of its chat template, or as signatures in the system message.

Descriptions are shortened until they take at most half of the context: some clients send dozens of tools.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from bitnet_hal.errors import UsageError

from bitnet_server.schema import Function, ToolCall
from bitnet_server.tools import OPENING, ToolChoice

if TYPE_CHECKING:  # it takes long to import: the server listens meanwhile
    from bitnet_core.api import Model

_LEVELS: Final = 5
"""Levels of detail: everything; without descriptions of parameters; first sentences; signatures; names."""

_SENTENCE: Final = 120
"""Most characters of a first sentence."""

_DEPTH: Final = 4
"""Levels of nested parameters in a signature."""

_ANNOTATIONS: Final = frozenset({"title", "description", "default", "examples", "$schema", "$id", "$comment"})


def trained(model: Model) -> bool:
    """Return True if the model's template renders tools, and calls in the form that is parsed here."""
    source = model.chat_template.tool_source
    return "tools" in source and OPENING in source


def template_tools(model: Model, choice: ToolChoice) -> list[dict[str, Any]]:
    """Return the tools for a template, in as much detail as half of the context holds."""

    def described(level: int) -> list[dict[str, Any]]:
        return [{"type": "function", "function": _shortened(function, level)} for function in choice.functions]

    def text(level: int) -> str:
        """Return the list as JSON, one tool after the other: a thread that writes megabytes holds all others."""
        return f"[{', '.join(json.dumps(one, ensure_ascii=False) for one in described(level))}]"

    return described(_most_detailed(model, text))


def with_tool_prompt(model: Model, messages: list[dict[str, Any]], choice: ToolChoice) -> list[dict[str, Any]]:
    """Return the messages with the tools described in the system message."""
    if not choice.tools:
        return messages

    def described(level: int) -> str:
        return (
            "You can call these functions:\n"
            + "\n".join(_signature(function, level) for function in choice.functions)
            + '\nTo call one, answer with nothing but JSON: {"name": the function\'s name, "arguments": its arguments}.'
        )

    text = described(_most_detailed(model, described))
    if messages[0]["role"] == "system":
        return [{"role": "system", "content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def render_call(call: ToolCall) -> str:
    """Render a call of an earlier answer as the model wrote it."""
    arguments = call.function.arguments
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'{{"name": {json.dumps(call.function.name)}, "arguments": {text}}}'


def template_call(call: ToolCall) -> dict[str, Any]:
    """Return a call of an earlier answer for a template."""
    arguments: Any = call.function.arguments
    if isinstance(arguments, str):
        try:
            found = json.loads(arguments)
        except (ValueError, RecursionError):
            found = None
        arguments = found if isinstance(found, dict) else arguments
    return {"type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def _most_detailed(model: Model, described: Callable[[int], str]) -> int:
    """Return the level with the most detail that takes at most half of the context; else the last one."""
    room = model.engine.max_model_len // 2
    for level in range(_LEVELS - 1):
        text = described(level)
        try:
            model.tokenizer.check_fits(text, room)
        except UsageError:
            continue
        if len(model.tokenizer.encode(text, add_bos=False)) <= room:
            return level
    return _LEVELS - 1


def _description(function: Function, level: int) -> str:
    text = (function.description or "").strip()
    if level < 2 or not text:
        return text
    return text.split("\n")[0].split(". ")[0][:_SENTENCE] if level == 2 else ""


def _shortened(function: Function, level: int) -> dict[str, Any]:
    """Return a function in the form of OpenAI's API at a level of detail."""
    parameters: Any = function.parameters or {"type": "object", "properties": {}}
    if level >= _LEVELS - 1:
        parameters = {"type": "object"}
    elif level:
        parameters = _bare(parameters)
    return {"name": function.name, "description": _description(function, level), "parameters": parameters}


def _bare(schema: Any) -> Any:
    """Return a schema without annotations; properties of these names stay."""
    if isinstance(schema, list):
        return [_bare(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions", "patternProperties") and isinstance(value, Mapping):
            kept[key] = {name: _bare(part) for name, part in value.items()}
        elif key in ("enum", "const"):
            kept[key] = value
        elif key not in _ANNOTATIONS:
            kept[key] = _bare(value)
    return kept


def _signature(function: Function, level: int) -> str:
    """Return a line such as `weather(city: string, days?: integer): The weather in a city.`"""
    schema = function.parameters or {}
    if level >= _LEVELS - 1:
        return function.name
    told = _description(function, level)
    line = f"{function.name}({_fields(schema, schema, _DEPTH)})" + (f": {told}" if told else "")
    properties = schema.get("properties")
    if level or not isinstance(properties, Mapping):
        return line
    notes = [(name, part.get("description")) for name, part in properties.items() if isinstance(part, Mapping)]
    return line + "".join(f"\n  {name}: {note}" for name, note in notes if isinstance(note, str))


def _fields(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> str:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, Mapping):
        return ""
    needed = required if isinstance(required, list) else []
    return ", ".join(
        f"{name}{'' if name in needed else '?'}: {_type(part, root, depth)}" for name, part in properties.items()
    )


def _type(schema: Any, root: Mapping[str, Any], depth: int) -> str:
    """Return the type of a schema's values in TypeScript's notation."""
    schema = _resolved(schema, root)
    if not isinstance(schema, Mapping) or not depth:
        return "any"
    for key in ("enum", "const"):
        if key in schema:
            values: Sequence[Any] = schema[key] if key == "enum" and isinstance(schema[key], list) else [schema[key]]
            return "|".join(json.dumps(value, ensure_ascii=False) for value in values)
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            return "|".join(dict.fromkeys(_type(part, root, depth - 1) for part in schema[key]))
    kind = schema.get("type")
    if isinstance(kind, list):
        return "|".join(map(str, kind))
    if kind == "array":
        return f"({inner})[]" if "|" in (inner := _type(schema.get("items"), root, depth - 1)) else f"{inner}[]"
    if "properties" in schema:
        return f"{{{_fields(schema, root, depth - 1)}}}"
    return str(kind or "any")


def _resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """Return the definition that a $ref to a place in the same schema names; the schema itself without one."""
    ref = schema.get("$ref") if isinstance(schema, Mapping) else None
    if not isinstance(ref, str) or not ref.startswith("#/"):
        return schema
    found: Any = root
    for name in ref[2:].split("/"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
