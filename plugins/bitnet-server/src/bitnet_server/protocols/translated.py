"""A call of another API, carried out as a chat or a completion."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

import msgspec

from bitnet_server.chat import ChatCall
from bitnet_server.completions import CompletionCall
from bitnet_server.errors import ApiError
from bitnet_server.framing import Framing
from bitnet_server.protocols.chunks import ChunkChoice, read_chunks
from bitnet_server.request_state import Delta, GenerationRequest, RequestState
from bitnet_server.response import Document
from bitnet_server.schema import ChatRequest, CompletionRequest, SamplingFields, given_numbers, parse
from bitnet_server.service import Service


class Answer(Framing, Protocol):
    """The protocol that turns the chunks of a chat into events of another API, and into its whole response."""

    def start(self) -> list[bytes]:
        """Return the first events."""

    def push(self, choice: ChunkChoice) -> list[bytes]:
        """Return the events of a chunk."""

    def end(self) -> list[bytes]:
        """Return the last events."""

    def document(self) -> Document:
        """Return the whole response, after `end`."""


Names = Mapping[str, str]
"""Names of another API's fields by those of a chat's."""


@contextmanager
def field_names(names: Names) -> Iterator[None]:
    """Let the errors of a chat name the fields of another API."""
    try:
        yield
    except ApiError as error:
        for chat, other in names.items():
            word = rf"(?<!\w){re.escape(chat)}(?!\w)"
            error.message = re.sub(word, other, error.message)
            error.param = re.sub(word, other, error.param) if error.param else None
        raise


def chat_call(service: Service, fields: dict[str, Any], names: Names) -> ChatCall:
    """Build a chat from fields with OpenAI's names, without those that are None. Raises ApiError 400."""
    with field_names(names):
        return ChatCall(service, parse(_body(fields), ChatRequest))


def completion_call(service: Service, fields: dict[str, Any], names: Names) -> CompletionCall:
    """Build a completion in the same way."""
    with field_names(names):
        return CompletionCall(service, parse(_body(fields), CompletionRequest))


def _body(fields: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode({name: value for name, value in fields.items() if value is not None})
    except RecursionError as exc:
        raise ApiError(400, "the body is nested too deeply") from exc


def arguments_json(arguments: dict[str, Any]) -> str:
    """Return the arguments of a call as a chat has them."""
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except RecursionError as exc:
        raise ApiError(400, "the arguments of a call are nested too deeply") from exc


class TranslatedCall(ABC):
    """A chat or a completion, whose answer an Answer writes. names: of the API's fields, for errors."""

    names: ClassVar[Names]

    def __init__(self, service: Service, inner: ChatCall | CompletionCall) -> None:
        self.service, self.inner = service, inner
        self.request = inner.request
        self._generations: list[GenerationRequest] = []
        self.reasoning_tokens = 0  # of deltas with nothing but reasoning

    @property
    def states(self) -> Sequence[RequestState]:
        """The states of the generation requests, once they are submitted."""
        return self.inner.states

    @states.setter
    def states(self, states: Sequence[RequestState]) -> None:
        self.inner.states = states

    @property
    def quick(self) -> bool:
        """The translated call is quick."""
        return self.inner.quick

    def generations(self) -> list[GenerationRequest]:
        """Build the generation requests. Runs in a worker thread."""
        with field_names(self.names):
            self._generations = self.inner.generations()
        return self._generations

    def headers(self) -> dict[str, str]:
        """Return headers of the response."""
        return self.inner.headers()

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer."""
        return self._generations[0].stops.matched

    @abstractmethod
    def answer(self) -> Answer:
        """Build the writer of the response."""

    def formatter(self) -> TranslatedFormatter:
        """Build the formatter of a streamed response."""
        return TranslatedFormatter(self)

    def to_response(self, deltas: Sequence[Delta]) -> Document:
        """Build the whole response."""
        formatter = self.formatter()
        formatter.start()
        for delta in deltas:
            formatter.chunks(delta)
        formatter.end()
        return formatter.answer.document()


class TranslatedFormatter:
    """The events of one response of another API (see streams.ResponseFormatter)."""

    def __init__(self, call: TranslatedCall) -> None:
        self.answer = call.answer()
        self._call = call
        self._inner = call.inner.formatter()
        self.media_type, self.keep_alive, self.last = self.answer.media_type, self.answer.keep_alive, self.answer.last

    def start(self) -> list[bytes]:
        """Return the first events."""
        return self.answer.start()

    def chunks(self, delta: Delta) -> list[bytes]:
        """Return the events of a delta."""
        if delta.reasoning and not delta.text:
            self._call.reasoning_tokens += delta.tokens
        return [event for choice in read_chunks(self._inner.chunks(delta)) for event in self.answer.push(choice)]

    def end(self) -> list[bytes]:
        """Return the last events."""
        return self.answer.end()

    def frame(self, documents: list[bytes]) -> bytes:
        """Return the bytes of these JSON documents in the stream."""
        return self.answer.frame(documents)

    def failed(self, error: ApiError) -> bytes:
        """Return the bytes that end a stream after an error."""
        return self.answer.failed(error)


def sampling_fields(request: SamplingFields) -> dict[str, Any]:
    """Return the sampling options that a request has, as fields of a chat request."""
    return {name: value for name, value in given_numbers(request).items() if value is not None}


def thinking_fields(service: Service, think: bool | None) -> dict[str, Any]:
    """Return the field that switches thinking on or off; {} if the chat template has no such switch."""
    if think is None or "enable_thinking" not in service.model.chat_template.source:
        return {}
    return {"chat_template_kwargs": {"enable_thinking": think}}
