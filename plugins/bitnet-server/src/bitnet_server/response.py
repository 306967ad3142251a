"""The parts that both kinds of responses have: ids, usage, timings, log probabilities."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from bitnet_server.random_hex import random_hex
from bitnet_server.request_state import RequestState
from bitnet_server.service import Service

if TYPE_CHECKING:  # they take long to import: the server listens meanwhile
    from bitnet_core.engine.sampling.logprobs import TokenScore
    from bitnet_core.tokenizer import Tokenizer

Document = dict[str, Any]

_MARK = random_hex(16)
"""The place of a text in a template; it occurs nowhere else."""


class ResponseEnvelope:
    """The fields that every chunk of a response repeats."""

    def __init__(self, service: Service, prefix: str, kind: str) -> None:
        self._fields: Document = {
            "id": f"{prefix}-{random_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": service.names[0],
            "system_fingerprint": service.fingerprint,
        }

    def document(self, choices: list[Document], **more: Any) -> Document:
        """Return the envelope with these choices."""
        return {**self._fields, "choices": choices, **more}


class TextTemplate:
    """A chunk without its text: a stream's chunks differ in nothing else, and encoding them whole takes longer.

    make: encodes the chunk of a text.
    """

    def __init__(self, make: Callable[[str], bytes]) -> None:
        self._before, self._after = make(_MARK).split(msgspec.json.encode(_MARK))

    def chunk(self, text: str) -> bytes:
        """Return the chunk of a text."""
        return self._before + msgspec.json.encode(text) + self._after


def usage(states: Sequence[RequestState], texts_per_prompt: int) -> Document:
    """Return the token counts of a response; a prompt counts once however many choices it has."""
    first = states[::texts_per_prompt]
    prompt = sum(state.request.prompt_tokens for state in first)
    made = sum(state.output.seen for state in states)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": sum(state.request.cached_tokens for state in first)},
    }


def timings(states: Sequence[RequestState]) -> Document:
    """Return the speed of the first choice, in the form of llama.cpp's server."""
    state = states[0]
    request, made = state.request, state.output.seen
    prefill, decode = request.prefill_seconds, request.decode_seconds
    return {
        "prompt_n": request.prompt_tokens - request.cached_tokens,
        "prompt_ms": round(1e3 * prefill, 3),
        "predicted_n": made,
        "predicted_ms": round(1e3 * decode, 3),
        "predicted_per_second": round((made - 1) / decode, 2) if made > 1 and decode > 0 else 0.0,
        "cache_n": request.cached_tokens,
    }


def token_document(tokenizer: Tokenizer, token: int, logprob: float) -> Document:
    """Return one token of a chat's logprobs."""
    raw = token_bytes(tokenizer, token)
    return {"token": raw.decode("utf-8", "replace"), "logprob": floor(logprob), "bytes": list(raw)}


def chat_logprobs(tokenizer: Tokenizer, scores: Sequence[TokenScore]) -> Document:
    """Return choices[].logprobs of a chat."""
    content = [
        token_document(tokenizer, score.token, score.logprob)
        | {"top_logprobs": [token_document(tokenizer, token, logprob) for token, logprob in score.top]}
        for score in scores
    ]
    return {"content": content, "refusal": None}


def token_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    """Return the bytes of a token; of control tokens, their names."""
    return tokenizer.token_bytes(token) or tokenizer.token_text(token).encode()


def floor(logprob: float) -> float:
    """Return a log probability, or -9999 for -inf, which JSON lacks (as in OpenAI's API)."""
    return max(logprob, -9999.0)
