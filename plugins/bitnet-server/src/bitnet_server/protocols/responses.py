"""OpenAI's POST /v1/responses: fields, and their translation to a chat."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from bitnet_server.chat import ChatCall
from bitnet_server.errors import ApiError
from bitnet_server.protocols.kept_responses import Item, KeptResponse, KeptResponses
from bitnet_server.protocols.responses_answer import ResponsesAnswer
from bitnet_server.protocols.responses_input import InputItem, chat_messages
from bitnet_server.protocols.translated import TranslatedCall, chat_call, sampling_fields, thinking_fields
from bitnet_server.response import Document
from bitnet_server.schema import SamplingFields, Tokens
from bitnet_server.service import Service

_NAMES = {
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "messages": "input",
    "function.name": "name",
    "function.parameters": "parameters",
}
_LOGPROBS = "message.output_text.logprobs"


class TextField(Struct):
    """The field text."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ReasoningOptions(Struct):
    """The field reasoning; an effort of "none" switches thinking off if the model can."""

    effort: str | None = None
    summary: str | None = None


class ResponsesRequest(SamplingFields, kw_only=True):
    """The body of POST /v1/responses."""

    input: str | Annotated[list[InputItem], Meta(min_length=1, max_length=4096)]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    max_output_tokens: Tokens | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=128)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextField | None = None
    reasoning: ReasoningOptions | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    metadata: Annotated[dict[str, Annotated[str, Meta(max_length=512)]], Meta(max_length=16)] | None = None
    truncation: str | None = None
    background: bool | None = None
    conversation: Any = None
    prompt: Any = None
    chat_template_kwargs: dict[str, Any] | None = None


class ResponsesCall(TranslatedCall):
    """A request of POST /v1/responses. items: the conversation up to the answer."""

    names = _NAMES

    def __init__(self, service: Service, request: ResponsesRequest) -> None:
        _check(request)
        self.responses_request = request
        self.items = _conversation(service, request)
        super().__init__(service, _chat(service, request, self.items))

    def answer(self) -> ResponsesAnswer:
        """Build the writer of the response."""
        return ResponsesAnswer(self)


def input_tokens(service: Service, request: ResponsesRequest) -> Document:
    """Return the number of tokens of a prompt; takes as long as its template and tokenizer."""
    _check(request)
    chat = _chat(service, request, _conversation(service, request))
    return {"object": "response.input_tokens", "input_tokens": len(chat.prompt_tokens())}


def find_response(kept: KeptResponses, response_id: str) -> KeptResponse:
    """Return a response that is kept. Raises ApiError 404 if it is not."""
    found = kept.find(response_id)
    if found is None:
        raise ApiError(404, f"there is no response {response_id[:100]!r} here", code="response_not_found")
    return found


def drop_response(kept: KeptResponses, response_id: str) -> Document:
    """Drop a response that is kept. Raises ApiError 404 if it is not."""
    find_response(kept, response_id)
    return {"id": response_id, "object": "response", "deleted": kept.drop(response_id)}


def _check(request: ResponsesRequest) -> None:
    """Raise ApiError 400 for fields that would change the answer, and that this server lacks."""
    for name in ("background", "conversation", "prompt"):
        if getattr(request, name):
            raise ApiError(400, f"{name} is not supported here", param=name, code="unsupported_value")
    if request.truncation not in (None, "auto", "disabled"):
        raise ApiError(400, "truncation must be auto or disabled", param="truncation")


def _conversation(service: Service, request: ResponsesRequest) -> list[Item]:
    """Return the items of the previous response and of the input. Raises ApiError if one is not kept."""
    items: list[Item] = []
    if request.previous_response_id is not None:
        kept = service.kept_responses.find(request.previous_response_id)
        if kept is None:
            text = f"there is no response {request.previous_response_id[:100]!r} here; send the whole conversation"
            raise ApiError(400, text, param="previous_response_id", code="previous_response_not_found")
        items += kept.items
    if isinstance(request.input, str):
        return [*items, {"type": "message", "role": "user", "content": request.input}]
    for at, item in enumerate(request.input):
        items.append(_referenced(service, item, at) if item.type == "item_reference" else msgspec.to_builtins(item))
    return items


def _referenced(service: Service, item: InputItem, at: int) -> Item:
    found = service.kept_responses.find_item(item.id or "")
    if found is None:
        text = f"input[{at}] refers to the item {(item.id or '')[:100]!r}, which is not here; send the item itself"
        raise ApiError(400, text, param=f"input[{at}].id", code="item_not_found")
    return found


def _chat(service: Service, request: ResponsesRequest, items: list[Item]) -> ChatCall:
    messages = chat_messages(msgspec.convert(items, list[InputItem]), request.instructions)
    return chat_call(service, _fields(service, request) | {"messages": messages}, _NAMES)


def _fields(service: Service, request: ResponsesRequest) -> Document:
    """Return the fields of a chat request but its messages."""
    fields = sampling_fields(request) | {
        "model": request.model,
        "stream": bool(request.stream),
        "max_completion_tokens": request.max_output_tokens,
        "tool_choice": request.tool_choice,
        "parallel_tool_calls": request.parallel_tool_calls,
        "truncation": request.truncation,
        "response_format": _response_format(request.text.format) if request.text and request.text.format else None,
        "chat_template_kwargs": request.chat_template_kwargs,
    }
    if request.top_logprobs is not None or _LOGPROBS in (request.include or ()):
        fields |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    if request.tools:
        fields["tools"] = [_tool(tool, at) for at, tool in enumerate(request.tools)]
    effort = request.reasoning.effort if request.reasoning else None
    think = None if effort is None or request.chat_template_kwargs else effort != "none"
    return fields | thinking_fields(service, think)


def _tool(tool: Document, at: int) -> Document:
    if tool.get("type") != "function":
        raise ApiError(400, f"tools[{at}] is not a function: this server runs no tools of its own", param="tools")
    names = ("name", "description", "parameters", "strict")
    function = {name: tool[name] for name in names if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _response_format(form: Document) -> Document | None:
    """Return response_format, which holds in json_schema what text.format holds itself."""
    if form.get("type") == "text":
        return None
    if form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {name: value for name, value in form.items() if name != "type"}}
