"""The endpoint POST /v1/chat/completions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import msgspec
from bitnet_core.structured import Grammar
from bitnet_hal.errors import UsageError

from bitnet_server.enforced_tools import enforceable
from bitnet_server.errors import ApiError
from bitnet_server.framing import ServerSentEvents
from bitnet_server.output_format import grammar_in
from bitnet_server.request_builder import check_common, generation_requests
from bitnet_server.request_state import Delta, GenerationRequest, RequestState
from bitnet_server.response import Document, ResponseEnvelope, TextTemplate, chat_logprobs, timings, usage
from bitnet_server.schema import ChatRequest, Message
from bitnet_server.service import Service
from bitnet_server.tool_calls import Parser, to_tool_calls
from bitnet_server.tool_prompt import render_call, template_call, template_tools, trained, with_tool_prompt
from bitnet_server.tools import ToolChoice

if TYPE_CHECKING:  # it takes long to import: the server listens meanwhile
    from bitnet_core.api import Model

_HEADER = 1000
"""Most characters of a header about tools."""

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",  # the name before tools
}


class ChatCall:
    """A chat request: its generation requests, and the formatting of its response."""

    quick = False  # another process renders the template

    def __init__(self, service: Service, request: ChatRequest) -> None:
        self.service, self.request = service, request
        self.model: Model = service.model
        self._check()
        self.states: Sequence[RequestState] = ()

    @cached_property
    def _tools(self) -> ToolChoice:
        return ToolChoice.of(self.request, trained=trained(self.model))

    @cached_property
    def _format(self) -> Grammar | None:
        return grammar_in(self.request)

    @cached_property
    def _parsers(self) -> list[Parser]:
        answers = self._format is not None and not self._tools.must
        return [Parser(self._tools, answers=answers) for _ in range(self.request.n or 1)]

    def _check(self) -> None:
        request = self.request
        check_common(request, self.model)
        if request.top_logprobs and not request.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs", param="top_logprobs")
        for name in ("functions", "function_call", "web_search_options"):
            if getattr(request, name) not in (None, [], "none"):
                raise ApiError(400, f"{name} is not supported: use tools", param=name, code="unsupported_value")
        for name in ("max_tokens", "max_completion_tokens"):
            if getattr(request, name) == 0:
                raise ApiError(400, f"{name} must be 1 or more, or -1 for the room in the context", param=name)
        if request.modalities is not None and request.modalities != ["text"]:
            raise ApiError(400, "only text can be generated", param="modalities", code="unsupported_value")

    def generations(self) -> list[GenerationRequest]:
        """Build the generation requests: template, tokenize, compile grammars. Runs in a worker thread."""
        request = self.request
        grammar = self._grammar()
        tokens = self.prompt_tokens()
        given = self._max_tokens
        logprobs = (request.top_logprobs or 0) if request.logprobs else None
        limit = given if given > 0 else max(1, self.model.engine.max_model_len - len(tokens))
        return generation_requests(request, self.model, [tokens], limit, logprobs=logprobs, grammar=grammar, reply=True)

    @property
    def _max_tokens(self) -> int:
        """The limit on the answer's tokens; -1 for the room in the context."""
        request = self.request
        return request.max_completion_tokens or request.max_tokens or self.service.settings.max_tokens or -1

    def prompt_tokens(self) -> list[int]:
        """Return the tokens of the conversation.

        With truncation "auto" the oldest turns are left out until it fits with an answer of max_tokens, of at most half
        of the context; without such a limit, of a quarter.
        """
        messages, variables = self.request.messages, self._variables()
        if self.request.truncation != "auto":
            return chat_tokens(self.model, messages, self._tools, variables)
        context, max_tokens = self.model.engine.max_model_len, self._max_tokens
        room = context - (min(max_tokens, context // 2) if max_tokens > 0 else context // 4)
        turns = [message for message in messages if _ROLES.get(message.role) != "system"]
        fixed = [message for message in messages if _ROLES.get(message.role) == "system"]

        def without(count: int) -> list[int] | None:
            """Return the tokens without so many of the oldest turns; None if they do not fit."""
            try:
                tokens = chat_tokens(self.model, [*fixed, *turns[count:]], self._tools, variables)
            except UsageError as exc:
                if "context holds" not in str(exc):
                    raise
                return None
            return tokens if len(tokens) <= room else None

        starts = [at for at, turn in enumerate(turns) if turn.role == "user"] or [0]
        if (tokens := without(0)) is not None:
            return tokens
        at = bisect_left(starts, True, lo=min(1, len(starts) - 1), key=lambda start: without(start) is not None)
        left = starts[min(at, len(starts) - 1)]
        return chat_tokens(self.model, [*fixed, *turns[left:]], self._tools, variables)

    def _variables(self) -> dict[str, Any]:
        """Return the entries of chat_template_kwargs that the template uses; without any, reasoning_effort switches
        thinking on or off if the model can."""
        given = self.request.chat_template_kwargs
        effort, switch = self.request.reasoning_effort, "enable_thinking" in self.model.chat_template.source
        if given is None:
            return {"enable_thinking": effort != "none"} if effort is not None and switch else {}
        known = {name: given[name] for name in ("enable_thinking",) if name in given}
        for name, value in known.items():
            if not isinstance(value, bool) or name not in self.model.chat_template.source:
                text = f"the model's chat template has no {name}, or it is not true or false"
                raise ApiError(400, text, param="chat_template_kwargs")
        return known

    def _grammar(self) -> Grammar | None:
        """Return the grammar of the answer, with parameters of tools that are supported."""
        answer = self._format
        if self._tools.tools:
            self._tools = enforceable(self._tools, self.model.grammars)
        return self._tools.grammar(answer)

    def headers(self) -> dict[str, str]:
        """Return headers of the response: the parts of tools that are not enforced."""
        if not self._tools.relaxed:
            return {}
        text = "; ".join(self._tools.relaxed).encode("ascii", "replace").decode()
        return {"x-tools-not-enforced": "".join(filter(str.isprintable, text))[:_HEADER]}

    def to_response(self, deltas: Sequence[Delta]) -> Document:
        """Build the whole response."""
        envelope = ResponseEnvelope(self.service, "chatcmpl", "chat.completion")
        choices = []
        for index, parser in enumerate(self._parsers):
            own = [delta for delta in deltas if delta.index == index]
            parts = [parser.push(delta.text, last=delta.finish is not None) for delta in own]
            calls = [call for part in parts for call in part.calls]
            text = "".join(part.text for part in parts)
            message: Document = {"role": "assistant", "content": None if calls else text, "refusal": None}
            if reasoning := "".join(delta.reasoning for delta in own):
                message["reasoning_content"] = reasoning.rstrip("\n")
            if calls:
                message["tool_calls"] = to_tool_calls(calls)
            scores = [score for delta in own for score in delta.scores]
            choices.append(
                {
                    "index": index,
                    "message": message,
                    "logprobs": chat_logprobs(self.model.tokenizer, scores) if self.request.logprobs else None,
                    "finish_reason": parser.reason(own[-1].finish or "stop"),
                }
            )
        return envelope.document(choices, usage=usage(self.states, len(self.states)), timings=timings(self.states))

    def formatter(self) -> ChatFormatter:
        """Build the formatter of a streamed response."""
        return ChatFormatter(self, self._parsers)


class ChatFormatter(ServerSentEvents):
    """The chunks of one chat response (see streams.ResponseFormatter)."""

    def __init__(self, call: ChatCall, parsers: Sequence[Parser]) -> None:
        self._call, self._parsers = call, parsers
        self._envelope = ResponseEnvelope(call.service, "chatcmpl", "chat.completion.chunk")
        options = call.request.stream_options
        self._usage = bool(options and options.include_usage)
        self._texts = [TextTemplate(partial(self._text_chunk, index)) for index in range(len(parsers))]

    def start(self) -> list[bytes]:
        """Return a chunk with the role for every choice."""
        return [self._chunk(i, {"role": "assistant", "content": ""}) for i in range(len(self._parsers))]

    def chunks(self, delta: Delta) -> list[bytes]:
        """Return chunks of text or tool calls, and the finish reason."""
        parser, found = self._parsers[delta.index], []
        part = parser.push(delta.text, last=delta.finish is not None)
        scores = None
        if self._call.request.logprobs and delta.scores:
            scores = chat_logprobs(self._call.model.tokenizer, delta.scores)
        if delta.reasoning:
            found.append(self._chunk(delta.index, {"reasoning_content": delta.reasoning}))
        if scores:
            found.append(self._chunk(delta.index, {"content": part.text}, logprobs=scores))
        elif part.text:
            found.append(self._texts[delta.index].chunk(part.text))
        found += [self._chunk(delta.index, {"tool_calls": [call]}) for call in part.calls]
        if delta.finish is not None:
            found.append(self._chunk(delta.index, {}, reason=parser.reason(delta.finish)))
        return found

    def end(self) -> list[bytes]:
        """Return the usage chunk, if it was requested."""
        if not self._usage:
            return []
        states = self._call.states
        return [
            msgspec.json.encode(self._envelope.document([], usage=usage(states, len(states)), timings=timings(states)))
        ]

    def _text_chunk(self, index: int, text: str) -> bytes:
        return self._chunk(index, {"content": text})

    def _chunk(
        self, index: int, delta: Document, *, logprobs: Document | None = None, reason: str | None = None
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        more: Document = {"usage": None} if self._usage else {}
        if reason is not None and not self._usage and len(self._parsers) == 1:
            more["timings"] = timings(self._call.states)
        return msgspec.json.encode(self._envelope.document([choice], **more))


def plain_messages(messages: Sequence[Message], *, calls: bool = False) -> list[dict[str, Any]]:
    """Return messages for a template with text as their content. calls: the template renders tool calls itself."""
    plain: list[dict[str, Any]] = []
    for at, message in enumerate(messages):
        where = f"messages[{at}]"
        role = _ROLES.get(message.role)
        if role is None:
            raise ApiError(400, f"{where}.role must be one of {', '.join(_ROLES)}", param=f"{where}.role")
        text = _text(message, where)
        if text is None and role != "assistant":
            raise ApiError(400, f"{where}.content is missing", param=f"{where}.content")
        more: dict[str, Any] = {}
        if message.tool_calls and calls:
            more["tool_calls"] = [template_call(call) for call in message.tool_calls]
        elif message.tool_calls:
            text = "\n".join(filter(None, [text, *(render_call(call) for call in message.tool_calls)]))
        plain.append({"role": role, "content": text or "", **more})
    return plain


def _text(message: Message, where: str) -> str | None:
    if not isinstance(message.content, list):
        return message.content
    for at, part in enumerate(message.content):
        if part.readable is None:
            where = f"{where}.content[{at}]"
            raise ApiError(400, f"{where} is not text, the only supported kind", param=where)
    return "".join(part.readable or "" for part in message.content)


def chat_tokens(model: Model, messages: Sequence[Message], choice: ToolChoice, variables: dict[str, Any]) -> list[int]:
    """Return the tokens of a conversation; an assistant's message at its end is continued.

    Tools are described as the model was trained to read them if its template renders tools, else in the system message.
    """
    native = trained(model)
    plain = plain_messages(messages, calls=native)
    if choice.tools and native:
        variables = {**variables, "tools": template_tools(model, choice)}
    elif choice.tools:
        plain = with_tool_prompt(model, plain, choice)
    begun = ""
    if plain[-1]["role"] == "assistant" and len(plain) > 1 and "tool_calls" not in plain[-1]:
        begun = plain.pop()["content"]
    limit = model.engine.max_model_len
    tokens = model.chat_template.chat_tokens(plain, limit=limit, **variables)
    return tokens + (model.tokenizer.encode(begun, add_bos=False) if begun else [])
