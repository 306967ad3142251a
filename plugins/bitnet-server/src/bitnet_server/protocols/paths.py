"""The paths of all APIs, and the functions that parse their requests."""

from __future__ import annotations

from collections.abc import Callable

from bitnet_server.call import Call
from bitnet_server.descriptions import tokenizer_info
from bitnet_server.framing import AnthropicEvents, JsonLines
from bitnet_server.models import Models
from bitnet_server.parsed_request import ParsedRequest
from bitnet_server.response import Document
from bitnet_server.schema import ChatRequest, CompletionRequest, parse
from bitnet_server.service import Service

# The modules of the APIs are imported by their first request: they take long, and the server listens meanwhile.


def _chat(body: bytes) -> ParsedRequest[Call]:
    request = parse(body, ChatRequest)

    def build(service: Service) -> Call:
        from bitnet_server.chat import ChatCall

        return ChatCall(service, request)

    return ParsedRequest(request.model, build, bool(request.stream))


def _completion(body: bytes) -> ParsedRequest[Call]:
    request = parse(body, CompletionRequest)

    def build(service: Service) -> Call:
        from bitnet_server.completions import CompletionCall

        return CompletionCall(service, request)

    return ParsedRequest(request.model, build, bool(request.stream))


def _responses(body: bytes) -> ParsedRequest[Call]:
    from bitnet_server.protocols.responses import ResponsesCall, ResponsesRequest

    request = parse(body, ResponsesRequest)
    return ParsedRequest(request.model, lambda service: ResponsesCall(service, request), bool(request.stream))


def _input_tokens(body: bytes) -> ParsedRequest[Document]:
    from bitnet_server.protocols.responses import ResponsesRequest, input_tokens

    request = parse(body, ResponsesRequest)
    return ParsedRequest(request.model, lambda service: input_tokens(service, request))


def _messages(body: bytes) -> ParsedRequest[Call]:
    from bitnet_server.protocols.messages import MessagesCall, MessagesRequest

    request = parse(body, MessagesRequest)
    return ParsedRequest(
        request.model, lambda service: MessagesCall(service, request), bool(request.stream), AnthropicEvents()
    )


def _count_tokens(body: bytes) -> ParsedRequest[Document]:
    from bitnet_server.protocols.messages import CountRequest, count_tokens

    request = parse(body, CountRequest)
    return ParsedRequest(request.model, lambda service: count_tokens(service, request))


def _ollama_chat(body: bytes) -> ParsedRequest[Call]:
    from bitnet_server.protocols.keep_alive import seconds_of
    from bitnet_server.protocols.ollama import LoadCall, OllamaChatCall, OllamaChatRequest, model_name, unloaded

    request = parse(body, OllamaChatRequest)

    def build(service: Service) -> Call:
        return OllamaChatCall(service, request) if request.messages else LoadCall(service, request, chat=True)

    kept = seconds_of(request.keep_alive)
    gone = None if request.messages else unloaded(request, chat=True)
    return ParsedRequest(model_name(request.model), build, request.stream is not False, JsonLines(), kept, gone)


def _ollama_generate(body: bytes) -> ParsedRequest[Call]:
    from bitnet_server.protocols.keep_alive import seconds_of
    from bitnet_server.protocols.ollama import LoadCall, OllamaGenerateCall, OllamaGenerateRequest, model_name, unloaded

    request = parse(body, OllamaGenerateRequest)

    def build(service: Service) -> Call:
        return OllamaGenerateCall(service, request) if request.prompt else LoadCall(service, request, chat=False)

    kept = seconds_of(request.keep_alive)
    gone = None if request.prompt else unloaded(request, chat=False)
    return ParsedRequest(model_name(request.model), build, request.stream is not False, JsonLines(), kept, gone)


def _ollama_embed(body: bytes) -> ParsedRequest[Document]:
    from bitnet_server.protocols.embeddings import OllamaEmbedRequest, ollama_embed
    from bitnet_server.protocols.keep_alive import seconds_of
    from bitnet_server.protocols.ollama import model_name

    request = parse(body, OllamaEmbedRequest)
    kept = seconds_of(request.keep_alive)
    return ParsedRequest(model_name(request.model), lambda service: ollama_embed(service, request), keep_alive=kept)


def _embeddings(body: bytes) -> ParsedRequest[Document]:
    from bitnet_server.protocols.embeddings import EmbeddingsRequest, embeddings

    request = parse(body, EmbeddingsRequest)
    return ParsedRequest(request.model, lambda service: embeddings(service, request))


def _ollama_tags(models: Models) -> Document:
    from bitnet_server.protocols.ollama_models import tags

    return tags(models.served)


def _ollama_ps(models: Models) -> Document:
    from bitnet_server.protocols.ollama_models import running

    return running(models.served)


def _ollama_version(models: Models) -> Document:
    from bitnet_server.protocols.ollama_models import version

    return version()


CALLS: dict[str, Callable[[bytes], ParsedRequest[Call]]] = {
    "/v1/chat/completions": _chat,
    "/chat/completions": _chat,
    "/v1/completions": _completion,
    "/completions": _completion,
    "/v1/responses": _responses,
    "/responses": _responses,
    "/v1/messages": _messages,
    "/api/chat": _ollama_chat,
    "/api/generate": _ollama_generate,
}
"""POST paths that generate text."""

SHARED = frozenset(path for path, read in CALLS.items() if read in (_chat, _completion, _messages))
"""Paths that every HTTP process of a server answers: their answers need only the model and the queue."""

POSTS: dict[str, Callable[[bytes], ParsedRequest[Document]]] = {
    "/v1/responses/input_tokens": _input_tokens,
    "/v1/messages/count_tokens": _count_tokens,
    "/v1/embeddings": _embeddings,
    "/embeddings": _embeddings,
    "/api/embed": _ollama_embed,
    "/api/embeddings": _ollama_embed,
}
"""POST paths that answer without generating; the functions that ParsedRequest.build holds run in a worker thread."""

GETS: dict[str, Callable[[Models], Document]] = {
    "/api/tags": _ollama_tags,
    "/api/ps": _ollama_ps,
    "/api/version": _ollama_version,
}
"""GET paths that describe all models."""

MODEL_GETS: dict[str, Callable[[Service], Document]] = {"/tokenizer_info": tokenizer_info}
"""GET paths that describe the loaded model that the query names."""

UNMANAGED: dict[str, list[str]] = {
    "/api/create": ["POST"],
    "/api/copy": ["POST"],
    "/api/push": ["POST"],
    "/api/delete": ["DELETE"],
    "/api/blobs/{digest}": ["HEAD", "POST"],
}
"""Paths by which Ollama's clients change models, which this server does not offer, and their methods."""
