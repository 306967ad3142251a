"""The paths of other APIs than OpenAI's chats and completions, and the functions that answer them."""

from __future__ import annotations

from collections.abc import Callable

from bitnet_server.call import Call
from bitnet_server.descriptions import tokenizer_info
from bitnet_server.response import Document
from bitnet_server.schema import parse
from bitnet_server.service import Service

# The modules of the APIs are imported by their first request: they take long, and the server listens meanwhile.


def _responses(service: Service, body: bytes) -> Call:
    from bitnet_server.protocols.responses import ResponsesCall, ResponsesRequest

    return ResponsesCall(service, parse(body, ResponsesRequest))


def _messages(service: Service, body: bytes) -> Call:
    from bitnet_server.protocols.messages import MessagesCall, MessagesRequest

    return MessagesCall(service, parse(body, MessagesRequest))


def _count_tokens(service: Service, body: bytes) -> Document:
    from bitnet_server.protocols.messages import CountRequest, count_tokens

    return count_tokens(service, parse(body, CountRequest))


def _ollama_chat(service: Service, body: bytes) -> Call:
    from bitnet_server.protocols.ollama import LoadCall, OllamaChatCall, OllamaChatRequest

    request = parse(body, OllamaChatRequest)
    return OllamaChatCall(service, request) if request.messages else LoadCall(service, request, chat=True)


def _ollama_generate(service: Service, body: bytes) -> Call:
    from bitnet_server.protocols.ollama import LoadCall, OllamaGenerateCall, OllamaGenerateRequest

    request = parse(body, OllamaGenerateRequest)
    return OllamaGenerateCall(service, request) if request.prompt else LoadCall(service, request, chat=False)


def _ollama_show(service: Service, body: bytes) -> Document:
    from bitnet_server.protocols.ollama_models import ShowRequest, show

    return show(service, parse(body, ShowRequest))


def _ollama_embed(service: Service, body: bytes) -> Document:
    from bitnet_server.protocols.embeddings import OllamaEmbedRequest, ollama_embed
    from bitnet_server.protocols.ollama import model_name, no_model

    request = parse(body, OllamaEmbedRequest)
    if (name := model_name(request.model)) not in service.names:
        raise no_model(name)
    return ollama_embed(service, request)


def _embeddings(service: Service, body: bytes) -> Document:
    from bitnet_server.protocols.embeddings import EmbeddingsRequest, embeddings
    from bitnet_server.protocols.ollama import no_model

    request = parse(body, EmbeddingsRequest)
    if request.model is not None and request.model not in service.names:
        raise no_model(request.model)
    return embeddings(service, request)


def _ollama_tags(service: Service) -> Document:
    from bitnet_server.protocols.ollama_models import tags

    return tags(service)


def _ollama_ps(service: Service) -> Document:
    from bitnet_server.protocols.ollama_models import running

    return running(service)


def _ollama_version(service: Service) -> Document:
    from bitnet_server.protocols.ollama_models import version

    return version(service)


CALLS: dict[str, Callable[[Service, bytes], Call]] = {
    "/v1/responses": _responses,
    "/responses": _responses,
    "/v1/messages": _messages,
    "/api/chat": _ollama_chat,
    "/api/generate": _ollama_generate,
}
"""POST paths that generate text."""

POSTS: dict[str, Callable[[Service, bytes], Document]] = {
    "/v1/messages/count_tokens": _count_tokens,
    "/v1/embeddings": _embeddings,
    "/embeddings": _embeddings,
    "/api/show": _ollama_show,
    "/api/embed": _ollama_embed,
    "/api/embeddings": _ollama_embed,
}
"""POST paths that answer from the body alone; the functions run in a worker thread."""

GETS: dict[str, Callable[[Service], Document]] = {
    "/tokenizer_info": tokenizer_info,
    "/api/tags": _ollama_tags,
    "/api/ps": _ollama_ps,
    "/api/version": _ollama_version,
}
"""GET paths without parameters."""
