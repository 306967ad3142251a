"""Ollama's POST /api/chat and /api/generate: fields, and their translation to a chat or a completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.responses import Response

from bitnet_server.bodies import json_response
from bitnet_server.errors import ApiError
from bitnet_server.protocols.keep_alive import KeepAlive, seconds_of
from bitnet_server.protocols.ollama_answer import LoadFormatter, OllamaAnswer
from bitnet_server.protocols.translated import (
    TranslatedCall,
    arguments_json,
    chat_call,
    completion_call,
    sampling_fields,
    thinking_fields,
)
from bitnet_server.request_state import Delta, GenerationRequest, RequestState
from bitnet_server.response import Document
from bitnet_server.schema import SamplingFields, Stop
from bitnet_server.service import Service

_NAMES = {"response_format": "format"}

_LATEST = ":latest"
"""The tag that Ollama's clients add to a name without one."""


class Options(SamplingFields, kw_only=True):
    """The field options. Options that load a model (num_ctx, num_gpu and so on) have no effect."""

    num_predict: int | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=16)] | None = None
    mirostat: int | None = None
    typical_p: float | None = None


class OllamaFunction(Struct):
    """The function of a tool call, whose arguments are an object."""

    name: str
    arguments: dict[str, Any] = {}


class OllamaCall(Struct):
    """A tool call that the model made before."""

    function: OllamaFunction
    id: str | None = None


class OllamaMessage(Struct):
    """A message of the conversation."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaRequest(Struct, kw_only=True):
    """Fields that /api/chat and /api/generate share. Streaming is the default."""

    model: str
    stream: bool | None = None
    keep_alive: KeepAlive | None = None
    format: str | dict[str, Any] | None = None
    options: Options | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class OllamaChatRequest(OllamaRequest, kw_only=True):
    """The body of POST /api/chat."""

    messages: Annotated[list[OllamaMessage], Meta(max_length=4096)] | None = None
    tools: list[dict[str, Any]] | None = None


class OllamaGenerateRequest(OllamaRequest, kw_only=True):
    """The body of POST /api/generate. raw: the prompt is not put into the chat template."""

    prompt: str | None = None
    system: str | None = None
    template: str | None = None
    suffix: str | None = None
    images: list[str] | None = None
    raw: bool | None = None


class OllamaTextCall(TranslatedCall):
    """A request whose answer has Ollama's form. chat: the answer has a message, not a response."""

    names = _NAMES
    chat: bool

    def answer(self) -> OllamaAnswer:
        """Build the writer of the response."""
        return OllamaAnswer(self, chat=self.chat)


class OllamaChatCall(OllamaTextCall):
    """A request of POST /api/chat."""

    chat = True

    def __init__(self, service: Service, request: OllamaChatRequest) -> None:
        messages = [_message(message, at) for at, message in enumerate(request.messages or ())]
        fields = _fields(service, request) | {"messages": messages, "tools": request.tools or None}
        super().__init__(service, chat_call(service, fields | _thinking(service, request), _NAMES))


class OllamaGenerateCall(OllamaTextCall):
    """A request of POST /api/generate."""

    chat = False

    def __init__(self, service: Service, request: OllamaGenerateRequest) -> None:
        for name in ("suffix", "template", "images"):
            if getattr(request, name):
                raise ApiError(400, f"{name} is not supported here", param=name)
        fields = _fields(service, request)
        if request.raw:
            super().__init__(service, completion_call(service, _raw_fields(service, request, fields), _NAMES))
            return
        messages = [{"role": "user", "content": request.prompt or ""}]
        if request.system:
            messages.insert(0, {"role": "system", "content": request.system})
        fields |= {"messages": messages} | _thinking(service, request)
        super().__init__(service, chat_call(service, fields, _NAMES))


class LoadCall:
    """A request without a prompt: its model is loaded by now, and with keep_alive 0 it is unloaded afterwards."""

    states: Sequence[RequestState] = ()

    def __init__(self, service: Service, request: OllamaRequest, *, chat: bool) -> None:
        self.service = service
        self._formatter = LoadFormatter(request.model, chat=chat, unload=seconds_of(request.keep_alive) == 0)

    quick = True

    def generations(self) -> list[GenerationRequest]:
        """Return no requests, so that the answer ends at once."""
        return []

    def headers(self) -> dict[str, str]:
        """Return no headers: nothing is asked for."""
        return {}

    def formatter(self) -> LoadFormatter:
        """Return the formatter of the only line."""
        return self._formatter

    def to_response(self, deltas: Sequence[Delta]) -> Document:
        """Return the only line."""
        return self._formatter.document()


def unloaded(request: OllamaRequest, *, chat: bool) -> Response | None:
    """Return the answer to a request without a prompt for a model that is not loaded; None unless keep_alive is 0."""
    if seconds_of(request.keep_alive) != 0:
        return None
    formatter = LoadFormatter(request.model, chat=chat, unload=True)
    if request.stream is False:
        return json_response(formatter.document())
    return Response(formatter.frame(formatter.end()), media_type=formatter.media_type.decode())


def model_name(name: str) -> str:
    """Return a model's name without Ollama's usual tag."""
    return name.removesuffix(_LATEST)


def _fields(service: Service, request: OllamaRequest) -> dict[str, Any]:
    """Return the fields that chats and completions share."""
    options = request.options or Options()
    if options.mirostat or options.typical_p not in (None, 1.0):
        raise ApiError(400, "options.mirostat and options.typical_p are not supported here", param="options")
    fields = sampling_fields(options) | {
        "model": model_name(request.model),
        "stream": request.stream is not False,
        "stop": options.stop or None,
        "response_format": _response_format(request.format),
    }
    if options.num_predict is not None and options.num_predict >= 0:  # -1 and -2: no limit but the context
        fields["max_tokens"] = max(1, options.num_predict)
    if request.logprobs:
        fields |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    return fields


def _raw_fields(service: Service, request: OllamaGenerateRequest, fields: dict[str, Any]) -> dict[str, Any]:
    if request.think or request.logprobs:
        raise ApiError(400, "think and logprobs need a prompt that is not raw", param="raw")
    most = service.settings.max_tokens or service.model.engine.max_model_len  # the context ends the answer sooner
    return {"max_tokens": most} | fields | {"prompt": request.prompt or "", "parse_special": True}


def _thinking(service: Service, request: OllamaRequest) -> dict[str, Any]:
    think = request.think
    if isinstance(think, str):
        if think not in ("low", "medium", "high"):
            raise ApiError(400, "think must be true, false, low, medium or high", param="think")
        think = True  # the levels are for models that know them
    if think and service.model.thinking_tags is None:
        raise ApiError(400, f"{model_name(request.model)!r} does not support thinking", param="think")
    return thinking_fields(service, think)


def _message(message: OllamaMessage, at: int) -> Document:
    if message.images:
        raise ApiError(400, f"messages[{at}] has images; only text can be read here", param=f"messages[{at}].images")
    found: Document = {"role": message.role, "content": message.content or ""}
    if message.thinking:
        found["reasoning_content"] = message.thinking
    if message.tool_call_id:
        found["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        found["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    return found


def _tool_call(call: OllamaCall) -> Document:
    arguments = arguments_json(call.function.arguments)
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def _response_format(form: str | dict[str, Any] | None) -> Document | None:
    if not form:
        return None
    if isinstance(form, dict):
        return {"type": "json_schema", "json_schema": {"name": "format", "schema": form}}
    if form != "json":
        raise ApiError(400, 'format must be "json" or a JSON schema', param="format")
    return {"type": "json_object"}
