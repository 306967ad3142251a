"""Embeddings: OpenAI's POST /v1/embeddings, and Ollama's POST /api/embed and /api/embeddings."""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from bitnet_server.errors import ApiError
from bitnet_server.protocols.keep_alive import KeepAlive
from bitnet_server.response import Document
from bitnet_server.service import Service

if TYPE_CHECKING:  # it takes long to import: the server listens meanwhile
    from bitnet_core.api import Model

Token = Annotated[int, Meta(ge=0)]
MOST_TEXTS = 2048
"""Most texts of a request, as in OpenAI's API."""


class EmbeddingsRequest(Struct):
    """The body of POST /v1/embeddings."""

    input: str | Annotated[list[str | int | list[Token]], Meta(min_length=1)]
    model: str | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    encoding_format: Literal["float", "base64"] | None = None


class OllamaEmbedRequest(Struct):
    """The body of POST /api/embed (input), and of the older POST /api/embeddings (prompt)."""

    model: str
    input: str | list[str] | None = None
    prompt: str | None = None
    truncate: bool | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    keep_alive: KeepAlive | None = None


def embeddings(service: Service, request: EmbeddingsRequest) -> Document:
    """Return the vectors of texts or token ids. Raises ApiError 400 for a model that generates text."""
    _check_embeds(service, 400)
    rows, tokens = _rows(service, _inputs(request.input), request.dimensions, truncate=False)
    as_base64 = request.encoding_format == "base64"
    data = [
        {"object": "embedding", "index": at, "embedding": _base64(row) if as_base64 else row.tolist()}
        for at, row in enumerate(rows)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": request.model or service.names[0], "usage": usage}


def ollama_embed(service: Service, request: OllamaEmbedRequest) -> Document:
    """Return the vectors of texts, or of a prompt. Raises ApiError 501 for a model that generates text."""
    _check_embeds(service, 501)
    began = time.perf_counter_ns()
    truncate = request.truncate is not False  # on by default, as in Ollama
    if request.input is None:
        rows, _ = _rows(service, [request.prompt or ""], request.dimensions, truncate=truncate)
        return {"embedding": rows[0].tolist()}
    texts = [request.input] if isinstance(request.input, str) else request.input
    rows, tokens = _rows(service, list(texts), request.dimensions, truncate=truncate)
    return {
        "model": request.model,
        "embeddings": rows.tolist(),
        "total_duration": time.perf_counter_ns() - began,
        "load_duration": 0,
        "prompt_eval_count": tokens,
    }


def _check_embeds(service: Service, status: int) -> None:
    """Raise ApiError if the model has no embeddings. status: 501 as in Ollama; OpenAI's clients would try it again."""
    if service.model.config.pooling is None:
        text = f"the model {service.names[0]!r} generates text; it has no embeddings"
        raise ApiError(status, text, code="no_embeddings")


def _inputs(given: str | list[Any]) -> list[str | list[int]]:
    """Return the texts, or lists of token ids, of the field input. Raises ApiError 400 for a mixture."""
    if isinstance(given, str):
        return [given]
    kinds = set(map(type, given))
    if len(kinds) > 1:
        raise ApiError(400, "input must be texts or token ids, not both", param="input")
    return [given] if kinds == {int} else given


def _rows(
    service: Service, texts: list[Any], dimensions: int | None, *, truncate: bool
) -> tuple[npt.NDArray[np.float32], int]:
    """Return the vectors f32[texts, dimensions] and the number of tokens of all texts."""
    from bitnet_core.api.embedding import text_tokens

    if len(texts) > MOST_TEXTS:
        raise ApiError(400, f"input has {len(texts)} texts, more than {MOST_TEXTS}", param="input")
    if not texts:
        return np.empty((0, 0), np.float32), 0
    model = service.model
    lists = [text_tokens(model.engine, model.tokenizer, text, truncate=truncate) for text in texts]

    def embed(model: Model) -> Any:
        return model.embed(lists, dimensions=dimensions)

    return service.on_engine(embed), sum(map(len, lists))


def _base64(row: npt.NDArray[np.float32]) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode()
