"""Anthropic's POST /v1/messages and /v1/messages/count_tokens: fields, and their translation to a chat."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from bitnet_server.errors import ApiError
from bitnet_server.protocols.messages_answer import MessagesAnswer
from bitnet_server.protocols.translated import (
    TranslatedCall,
    arguments_json,
    chat_call,
    sampling_fields,
    thinking_fields,
)
from bitnet_server.response import Document
from bitnet_server.schema import SamplingFields, Stop, Tokens
from bitnet_server.service import Service

_NAMES = {
    "response_format": "output_config.format",
    "function.name": "name",
    "function.parameters": "input_schema",
}


class Block(Struct):
    """A block of a message's content, with the fields of all types that can be read."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    is_error: bool | None = None


class AnthropicMessage(Struct):
    """A message of the conversation."""

    role: str
    content: str | list[Block]


class AnthropicTool(Struct):
    """An entry of tools; only those of the client, whose type is "custom" or absent, can be called."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class AnthropicToolChoice(Struct):
    """The field tool_choice."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct):
    """The field thinking. The budget has no effect."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = None


class OutputFormat(Struct):
    """The format of an answer: a JSON schema."""

    type: str
    schema: dict[str, Any]


class OutputConfig(Struct):
    """The field output_config."""

    format: OutputFormat | None = None


class CountRequest(SamplingFields, kw_only=True):
    """The body of POST /v1/messages/count_tokens."""

    model: str
    messages: Annotated[list[AnthropicMessage], Meta(min_length=1, max_length=4096)]
    system: str | list[Block] | None = None
    tools: Annotated[list[AnthropicTool], Meta(max_length=128)] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = None


class MessagesRequest(CountRequest, kw_only=True):
    """The body of POST /v1/messages."""

    max_tokens: Tokens
    stop_sequences: Annotated[list[Stop], Meta(max_length=16)] | None = None
    stream: bool | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # the older name


class MessagesCall(TranslatedCall):
    """A request of POST /v1/messages."""

    names = _NAMES

    def __init__(self, service: Service, request: MessagesRequest) -> None:
        fields = chat_fields(service, request) | sampling_fields(request)
        fields |= {"max_tokens": request.max_tokens, "stop": request.stop_sequences, "stream": request.stream}
        form = request.output_config.format if request.output_config else request.output_format
        if form is not None:
            fields["response_format"] = _response_format(form)
        super().__init__(service, chat_call(service, fields, _NAMES))

    def answer(self) -> MessagesAnswer:
        """Build the writer of the response."""
        return MessagesAnswer(self)


def count_tokens(service: Service, request: CountRequest) -> Document:
    """Return the number of tokens of a prompt; takes as long as its template and tokenizer."""
    return {"input_tokens": len(chat_call(service, chat_fields(service, request), _NAMES).prompt_tokens())}


def chat_fields(service: Service, request: CountRequest) -> dict[str, Any]:
    """Return the fields of a chat request that a prompt consists of."""
    fields: dict[str, Any] = {"model": request.model, "messages": chat_messages(request)}
    if request.tools:
        fields["tools"] = [_tool(tool, at) for at, tool in enumerate(request.tools)]
    if request.tool_choice is not None:
        fields |= _tool_choice(request.tool_choice)
    think = None if request.thinking is None else request.thinking.type != "disabled"
    return fields | thinking_fields(service, think)


def chat_messages(request: CountRequest) -> list[Document]:
    """Return a chat's messages. Raises ApiError 400 for content that is not text."""
    found: list[Document] = []
    if request.system:
        found.append({"role": "system", "content": _text(request.system, "system")})
    for at, message in enumerate(request.messages):
        where = f"messages[{at}]"
        if message.role not in ("system", "user", "assistant"):
            raise ApiError(400, f"{where}.role must be user, assistant or system", param=f"{where}.role")
        if message.role == "system":
            text = _text(message.content, f"{where}.content")
            if found and found[-1]["role"] == "system":  # many templates take one system message, the first
                found[-1]["content"] += f"\n\n{text}"
            else:
                found.append({"role": "system", "content": text})
        elif isinstance(message.content, str):
            found.append({"role": message.role, "content": message.content})
        elif message.role == "user":
            found += _user(message.content, f"{where}.content")
        else:
            found.append(_assistant(message.content, f"{where}.content"))
    return found


def _user(blocks: list[Block], where: str) -> list[Document]:
    """Return the messages of the tools, which come first, and the user's message."""
    results = [block for block in blocks if block.type == "tool_result"]
    rest = [block for block in blocks if block.type != "tool_result"]
    found: list[Document] = []
    for block in results:
        text = _text(block.content or "", f"{where}.content")
        found.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": text})
    if rest or not results:
        found.append({"role": "user", "content": _text(rest, where)})
    return found


def _assistant(blocks: list[Block], where: str) -> Document:
    calls = [block for block in blocks if block.type == "tool_use"]
    thoughts = "".join(block.thinking or "" for block in blocks if block.type == "thinking")
    hidden = ("tool_use", "thinking", "redacted_thinking")
    message: Document = {"role": "assistant"}
    message["content"] = _text([block for block in blocks if block.type not in hidden], where)
    if thoughts:
        message["reasoning_content"] = thoughts
    if calls:
        message["tool_calls"] = [_tool_call(block, where) for block in calls]
    return message


def _tool_call(block: Block, where: str) -> Document:
    if block.name is None:
        raise ApiError(400, f"a tool_use of {where} has no name", param=where)
    function = {"name": block.name, "arguments": arguments_json(block.input or {})}
    return {"id": block.id, "type": "function", "function": function}


def _text(content: str | list[Block], where: str) -> str:
    if isinstance(content, str):
        return content
    for at, block in enumerate(content):
        if block.type != "text" or block.text is None:
            raise ApiError(400, f"{where}[{at}] is of type {block.type[:40]}; only text can be read here", param=where)
    return "".join(block.text or "" for block in content)


def _tool(tool: AnthropicTool, at: int) -> Document:
    if tool.type not in (None, "custom"):
        raise ApiError(400, f"tools[{at}] is of type {tool.type!r:.60}, which this server cannot run", param="tools")
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": tool.strict,
    }
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}


def _tool_choice(choice: AnthropicToolChoice) -> Document:
    fields: Document = {}
    if choice.disable_parallel_tool_use:
        fields["parallel_tool_calls"] = False
    if choice.type == "tool":
        return fields | {"tool_choice": {"type": "function", "function": {"name": choice.name or ""}}}
    names = {"auto": "auto", "any": "required", "none": "none"}
    if choice.type not in names:
        raise ApiError(400, "tool_choice.type must be auto, any, tool or none", param="tool_choice.type")
    return fields | {"tool_choice": names[choice.type]}


def _response_format(form: OutputFormat) -> Document:
    if form.type != "json_schema":
        raise ApiError(400, "the type of an output format must be json_schema", param="output_config.format.type")
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": form.schema}}
