"""The input items of POST /v1/responses, and their translation to a chat's messages."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from bitnet_server.errors import ApiError
from bitnet_server.response import Document

_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


class InputPart(Struct):
    """A part of an item's content."""

    type: str
    text: str | None = None
    refusal: str | None = None


class InputItem(Struct, omit_defaults=True):
    """An item of the input, with the fields of all types that can be read; also an item of an earlier output."""

    type: str = "message"
    id: str | None = None
    role: str | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None
    summary: list[InputPart] | None = None


def chat_messages(items: Sequence[InputItem], instructions: str | None) -> list[Document]:
    """Return a chat's messages: reasoning, text and calls of one turn are one message of the assistant.

    Raises ApiError 400 for items and content that a text model cannot read.
    """
    found: list[Document] = []
    if instructions:
        found.append({"role": "system", "content": instructions})
    for at, item in enumerate(items):
        _add(found, item, f"input[{at}]")
    return _one_system_message(found)


def _add(found: list[Document], item: InputItem, where: str) -> None:
    if item.type == "message" and item.role == "assistant":
        _turn(found)["content"] += _text(item.content, where)
    elif item.type == "message" and item.role in ("user", "system", "developer"):
        role = "user" if item.role == "user" else "system"
        found.append({"role": role, "content": _text(item.content, where)})
    elif item.type == "message":
        raise ApiError(400, f"{where}.role must be user, assistant, system or developer", param=f"{where}.role")
    elif item.type == "reasoning":
        thoughts = _text(item.content or item.summary, where)
        turn = _turn(found)
        turn["reasoning_content"] = turn.get("reasoning_content", "") + thoughts
    elif item.type == "function_call":
        if item.name is None or item.call_id is None:
            raise ApiError(400, f"{where} needs a name and a call_id", param=where)
        function = {"name": item.name, "arguments": item.arguments or "{}"}
        _turn(found).setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})
    elif item.type == "function_call_output":
        found.append({"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output, where)})
    else:
        raise ApiError(400, f"{where} is of type {item.type[:60]!r}, which cannot be read here", param=f"{where}.type")


def _turn(found: list[Document]) -> Document:
    """Return the assistant's message at the end, or a new one."""
    if not found or found[-1]["role"] != "assistant":
        found.append({"role": "assistant", "content": ""})
    return found[-1]


def _one_system_message(messages: list[Document]) -> list[Document]:
    """Join the system messages at the beginning: many chat templates take one at most."""
    count = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages))
    if count < 2:
        return messages
    text = "\n\n".join(message["content"] for message in messages[:count])
    return [{"role": "system", "content": text}, *messages[count:]]


def _text(content: str | list[InputPart] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for at, part in enumerate(content):
        if part.type not in (*_TEXT_PARTS, "refusal"):
            text = f"{where}.content[{at}] is of type {part.type[:60]!r}; only text can be read here"
            raise ApiError(400, text, param=f"{where}.content[{at}]")
    return "".join(part.text or part.refusal or "" for part in content)
