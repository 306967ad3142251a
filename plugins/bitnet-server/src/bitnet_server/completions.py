"""The endpoint POST /v1/completions."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from bitnet_core.engine.request.prompt_scores import PromptScores
from bitnet_core.engine.sampling.logprobs import TokenScore

from bitnet_server.errors import ApiError
from bitnet_server.framing import ServerSentEvents
from bitnet_server.output_format import asks_for_form, grammar_in
from bitnet_server.request_builder import check_common, generation_requests
from bitnet_server.request_state import Delta, GenerationRequest, RequestState
from bitnet_server.response import Document, ResponseEnvelope, TextTemplate, floor, timings, token_bytes, usage
from bitnet_server.schema import CompletionRequest
from bitnet_server.service import Service

if TYPE_CHECKING:  # it takes long to import: the server listens meanwhile
    from bitnet_core.api import Model

_MAX_PROMPTS = 64
_DEFAULT_TOKENS = 16
_QUICK = 4096
"""Most characters or tokens of prompts that are tokenized at once: a thread would take longer to begin."""


class CompletionCall:
    """A completion request: its generation requests, and the formatting of its response."""

    def __init__(self, service: Service, request: CompletionRequest) -> None:
        self.service, self.request = service, request
        self.model: Model = service.model
        self.texts = request.n or 1
        self.states: Sequence[RequestState] = ()
        self.prompts: list[list[int]] = []
        self._prompt_scores: dict[int, PromptScores] = {}
        check_common(request, self.model)
        if request.suffix:
            raise ApiError(400, "this model has no tokens for a suffix", param="suffix", code="unsupported_value")
        if request.max_tokens == 0 and not request.echo:
            raise ApiError(400, "max_tokens 0 needs echo", param="max_tokens")
        self._given = _prompts(request.prompt)

    @property
    def quick(self) -> bool:
        """True if the prompts are short and no grammar must be compiled."""
        return self.texts == 1 and sum(map(len, self._given)) <= _QUICK and not asks_for_form(self.request)

    def generations(self) -> list[GenerationRequest]:
        """Build the generation requests: tokenize, compile grammars. Runs in a worker thread unless it is quick."""
        self.prompts = [self._tokens(prompt) for prompt in self._given]
        request = self.request
        given = _DEFAULT_TOKENS if request.max_tokens is None else request.max_tokens
        if given < 0:
            given = max(1, self.model.engine.max_model_len - min(map(len, self.prompts)))
        return generation_requests(
            request,
            self.model,
            self.prompts,
            given,
            logprobs=request.logprobs,
            grammar=grammar_in(request),
            scored=self._scored,
        )

    def _tokens(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):
            self.service.check_text(prompt)
            return self._encoded(prompt)
        vocab = self.model.config.vocab
        if not prompt:
            raise ApiError(400, "the prompt is empty", param="prompt")
        if any(not 0 <= token < vocab for token in prompt):
            raise ApiError(400, f"prompt names a token outside 0..{vocab - 1}", param="prompt")
        return prompt

    def _encoded(self, prompt: str) -> list[int]:
        """Return the tokens of a text.

        Control tokens in it are parsed, as in llama-server and vLLM, unless parse_special is false; a begin token is
        not doubled.
        """
        tokenizer = self.model.tokenizer
        tokens = tokenizer.encode(prompt, add_bos=False, parse_special=self.request.parse_special is not False)
        bos = tokenizer.bos_id
        if tokenizer.add_bos and bos is not None and tokens[:1] != [bos]:
            tokens.insert(0, bos)
        if not tokens:
            raise ApiError(400, "the prompt is empty", param="prompt")
        return tokens

    def _scored(self, index: int) -> PromptScores | None:
        """Return the keeper of the prompt's log probabilities if they are requested, or if the prompt is the whole
        text.
        """
        request = self.request
        if not request.echo or (request.logprobs is None and request.max_tokens != 0):
            return None
        kept = self._prompt_scores[index] = PromptScores(self.prompts[index // self.texts], request.logprobs or 0)
        return kept

    def echo(self, index: int) -> str:
        """Return the prompt's text if it is to be echoed."""
        if not self.request.echo:
            return ""
        given = self._given[index // self.texts]
        return given if isinstance(given, str) else self.model.tokenizer.decode(given)

    def prompt_logprobs(self, index: int) -> list[tuple[int, TokenScore | None]]:
        """Return the tokens of an echoed prompt with their scores; None for the first token."""
        if not self.request.echo or self.request.logprobs is None:
            return []
        prompt = self.prompts[index // self.texts]
        scores = self._prompt_scores[index].scores
        return [(token, scores.get(at)) for at, token in enumerate(prompt)]

    def to_response(self, deltas: Sequence[Delta]) -> Document:
        """Build the whole response."""
        envelope = ResponseEnvelope(self.service, "cmpl", "text_completion")
        choices = []
        for index in range(len(self.states)):
            own = [delta for delta in deltas if delta.index == index]
            offsets = Offsets(self, index)
            logprobs = None
            if self.request.logprobs is not None:
                made = [(score.token, score) for delta in own for score in delta.scores]
                logprobs = offsets.document([*self.prompt_logprobs(index), *made])
                end = len(self.echo(index)) + sum(len(delta.text) for delta in own)
                logprobs["text_offset"] = [min(at, end) for at in logprobs["text_offset"]]
            choices.append(
                {
                    "index": index,
                    "text": self.echo(index) + "".join(delta.text for delta in own),
                    "logprobs": logprobs,
                    "finish_reason": own[-1].finish,
                }
            )
        return envelope.document(choices, usage=usage(self.states, self.texts), timings=timings(self.states))

    def headers(self) -> dict[str, str]:
        """Return no headers: everything that a completion asks for is enforced."""
        return {}

    def formatter(self) -> CompletionFormatter:
        """Build the formatter of a streamed response."""
        return CompletionFormatter(self)


class Offsets:
    """Formatter of a completion's logprobs, which holds the offset of the next token in the text.

    A token that is a part of a character has the offset of that character. A control token has no text, unless the
    prompt spells it.
    """

    def __init__(self, call: CompletionCall, index: int) -> None:
        self._tokenizer = call.model.tokenizer
        self._echo = call.echo(index)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at = 0

    def document(self, scores: Sequence[tuple[int, TokenScore | None]]) -> Document:
        """Return choices[].logprobs for the next tokens."""
        texts = [self._text(token) for token, _ in scores]
        offsets = []
        for token, _ in scores:
            offsets.append(self._at)
            self._at += self._width(token)
        return {
            "tokens": texts,
            "token_logprobs": [None if score is None else floor(score.logprob) for _, score in scores],
            "top_logprobs": [
                None if score is None else {self._text(token): floor(value) for token, value in score.top}
                for _, score in scores
            ],
            "text_offset": offsets,
        }

    def _width(self, token: int) -> int:
        """Return the number of characters that a token completes in the text."""
        raw = self._tokenizer.token_bytes(token)
        if not raw:
            name = self._tokenizer.token_text(token)
            return len(name) if name and self._echo.startswith(name, self._at) else 0
        text = self._decoder.decode(raw)
        # a tokenizer may put a blank before the text
        blank = not self._at and self._echo and text.startswith(" ") and not self._echo.startswith(" ")
        return len(text) - bool(blank)

    def _text(self, token: int) -> str:
        return token_bytes(self._tokenizer, token).decode("utf-8", "replace")


class CompletionFormatter(ServerSentEvents):
    """The chunks of one completion (see streams.ResponseFormatter)."""

    def __init__(self, call: CompletionCall) -> None:
        self._call = call
        self._envelope = ResponseEnvelope(call.service, "cmpl", "text_completion")
        self._offsets = [Offsets(call, index) for index in range(len(call.states))]
        self._begun: set[int] = set()
        options = call.request.stream_options
        self._usage = bool(options and options.include_usage)
        self._texts = [TextTemplate(partial(self._text_chunk, index)) for index in range(len(call.states))]

    def start(self) -> list[bytes]:
        """Return no chunks: the first chunk of a choice carries the prompt, if it is requested."""
        return []

    def chunks(self, delta: Delta) -> list[bytes]:
        """Return chunks of text, and the finish reason."""
        index, call = delta.index, self._call
        text, scores = delta.text, [(score.token, score) for score in delta.scores]
        if index not in self._begun:
            self._begun.add(index)
            text = call.echo(index) + text
            scores = [*call.prompt_logprobs(index), *scores]  # type: ignore[list-item]  # None for the first token
        found = []
        if call.request.logprobs is None and text:
            found.append(self._texts[index].chunk(text))
        elif call.request.logprobs is not None and (text or scores):
            found.append(self._chunk(index, text, self._offsets[index].document(scores), None))
        if delta.finish is not None:
            found.append(self._chunk(index, "", None, delta.finish))
        return found

    def end(self) -> list[bytes]:
        """Return the usage chunk, if it was requested."""
        if not self._usage:
            return []
        call = self._call
        return [msgspec.json.encode(self._envelope.document([], usage=usage(call.states, call.texts)))]

    def _text_chunk(self, index: int, text: str) -> bytes:
        return self._chunk(index, text, None, None)

    def _chunk(self, index: int, text: str, logprobs: Document | None, reason: str | None) -> bytes:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        more: Document = {"usage": None} if self._usage else {}
        return msgspec.json.encode(self._envelope.document([choice], **more))


def _prompts(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """Return the prompts of a request, each a text or tokens. Raises ApiError 400 for a mixture."""
    if isinstance(prompt, str):
        return [prompt]
    texts = [item for item in prompt if isinstance(item, str)]
    tokens = [item for item in prompt if isinstance(item, int)]
    lists = [item for item in prompt if isinstance(item, list)]
    if tokens and len(tokens) == len(prompt):
        return [tokens]
    found: list[str | list[int]] = [*texts, *lists]
    if len(prompt) not in (len(texts), len(lists)):
        raise ApiError(400, "prompt mixes texts and tokens", param="prompt")
    if len(found) > _MAX_PROMPTS:
        raise ApiError(400, f"there are {len(found)} prompts; at most {_MAX_PROMPTS} may be", param="prompt")
    return found
