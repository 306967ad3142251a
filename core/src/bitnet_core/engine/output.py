"""Detokenize outputs: separate the reasoning, end at stop strings and hold back text that may begin one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from bitnet_hal.errors import BitnetError, UsageError

from bitnet_core.engine.engine import Engine
from bitnet_core.engine.request.reasoning import Reasoning
from bitnet_core.engine.request.request import FinishReason, Request
from bitnet_core.engine.sampling.logprobs import TokenScore
from bitnet_core.progress import Progress


class Decoder(Protocol):
    """An incremental detokenizer that returns whole characters only."""

    def push(self, token: int) -> str: ...

    def push_all(self, tokens: Iterable[int]) -> str: ...

    def flush(self) -> str: ...


@dataclass(frozen=True, slots=True)
class TextChunk:
    """The text that a token completed, possibly "". token: None for text held back until the end. reasoning: text
    between the reasoning tags, which is not part of `text`."""

    text: str
    token: int | None
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished generation. tokens: without the stop token, but with the tokens of a stop string, which is not part of
    text.

    finish_reason: "stop" (a stop token or string), "length" (max_tokens or the context), "cancelled", "error" (only if
    it was closed after one). prefill_seconds: duration of the steps up to the first token; decode_seconds: of the later
    ones. cached_tokens: prompt tokens taken from the prefix cache. scores: one per token, if logprobs are on.
    draft_tokens, accepted_tokens: numbers of verified and of accepted draft tokens.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    prefill_seconds: float
    decode_seconds: float
    cached_tokens: int
    seed: int
    scores: tuple[TokenScore, ...] = ()
    reasoning: str = ""
    draft_tokens: int = 0
    accepted_tokens: int = 0


class StopFilter:
    """A filter that passes text up to the first stop string and holds back a possible beginning of one."""

    def __init__(self, stops: Iterable[str]) -> None:
        self.stops = tuple(stops) if isinstance(stops, Iterable) else (stops,)
        if not all(isinstance(stop, str) and stop for stop in self.stops):
            raise UsageError("stop strings must be non-empty strings")
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the output."""

    @property
    def stopped(self) -> bool:
        """True after a stop string."""
        return self.matched is not None

    def push(self, text: str) -> str:
        """Add text and return the part that can be shown now."""
        if self.stopped:
            return ""
        self._held += text
        found = [(at, stop) for stop in self.stops if (at := self._held.find(stop)) >= 0]
        if found:
            at, self.matched = min(found)
            shown = self._held[:at]
            self._held = ""
            return shown
        keep = max((_overlap(self._held, stop) for stop in self.stops), default=0)
        shown = self._held[: len(self._held) - keep]
        self._held = self._held[len(self._held) - keep :]
        return shown

    def flush(self) -> str:
        """Return the text that is still held back; call it at the end of the output."""
        held = self._held
        self._held = ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of `text` that is a prefix of `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)


class OutputProcessor:
    """A converter of a request's tokens to TextChunks. text: the text so far.

    reasoning: separates the reasoning from the answer; without it everything is text. Stop strings are looked for in
    the answer only.
    """

    def __init__(
        self, request: Request, decoder: Decoder, stops: StopFilter, reasoning: Reasoning | None = None
    ) -> None:
        self.request = request
        self._decoder = decoder
        self._stops = stops
        self._reasoning = reasoning
        self._text: list[str] = []
        self._reasoning_text: list[str] = []
        self._seen = 0  # number of generated tokens that were converted to text

    @property
    def tokens(self) -> tuple[int, ...]:
        """The generated tokens that were converted to text, those of a stop string included."""
        first = self.request.prompt_tokens
        return tuple(self.request.tokens[first : first + self._seen])

    @property
    def seen(self) -> int:
        """Number of `tokens`."""
        return self._seen

    @property
    def text(self) -> str:
        """Concatenation of all chunks so far."""
        return "".join(self._text)

    @property
    def stopped(self) -> bool:
        """True after a stop string."""
        return self._stops.stopped

    @property
    def behind(self) -> bool:
        """True if there are tokens for `advance`."""
        return not self.stopped and self._seen < self.request.generated_tokens

    def advance(self) -> TextChunk:
        """Return the next token's chunk."""
        token = self.request.tokens[self.request.prompt_tokens + self._seen]
        self._seen += 1
        if self._reasoning is not None and self._reasoning.take(token):
            self._decoder.flush()  # drop the bytes of an incomplete character before a tag
            return self._kept(TextChunk("", token))
        return self._kept(self._chunk(self._decoder.push(token), token))

    def advance_all(self) -> TextChunk:
        """Return one chunk of all new tokens; its token is the last of them."""
        if self._reasoning is None and not self._stops.stops:
            new = self.request.tokens[self.request.prompt_tokens + self._seen :]
            self._seen += len(new)
            return self._kept(TextChunk(self._decoder.push_all(new), new[-1] if new else None))
        chunks = [TextChunk("", None)]
        while self.behind:
            chunks.append(self.advance())
        text = "".join(chunk.text for chunk in chunks)
        reasoning = "".join(chunk.reasoning for chunk in chunks)
        return TextChunk(text, chunks[-1].token, reasoning)

    def end(self) -> list[TextChunk]:
        """Return the text that was held back."""
        if self.stopped:
            return []
        last = self._chunk(self._decoder.flush(), None)
        last = replace(last, text=last.text + self._stops.flush())
        return [self._kept(last)] if last.text or last.reasoning else []

    def generation(self, reason: FinishReason) -> Generation:
        """Return the finished generation, with this reason."""
        request = self.request
        return Generation(
            text=self.text,
            tokens=self.tokens,
            finish_reason=reason,
            prompt_tokens=request.prompt_tokens,
            prefill_seconds=request.prefill_seconds,
            decode_seconds=request.decode_seconds,
            cached_tokens=request.cached_tokens,
            seed=request.sampler.seed,
            scores=tuple(request.sampler.scores[: self._seen]),
            reasoning="".join(self._reasoning_text).rstrip("\n"),
            draft_tokens=request.draft_tokens,
            accepted_tokens=request.accepted_tokens,
        )

    def _kept(self, chunk: TextChunk) -> TextChunk:
        self._text.append(chunk.text)
        self._reasoning_text.append(chunk.reasoning)
        return chunk

    def _chunk(self, text: str, token: int | None) -> TextChunk:
        if self._reasoning is None:
            return TextChunk(self._stops.push(text), token)
        text = self._reasoning.trimmed(text)
        if self._reasoning.inside:
            return TextChunk("", token, text)
        return TextChunk(self._stops.push(text), token)


class GenerationStream:
    """Iterator over the TextChunks of one request; `result` is available after the iteration."""

    def __init__(self, engine: Engine, output: OutputProcessor, progress: Progress | None = None) -> None:
        self._engine = engine
        self._output = output
        self._progress = progress
        self._sequence = output.request
        self._chunks: deque[TextChunk] = deque()
        self._result: Generation | None = None

    @property
    def result(self) -> Generation:
        """The finished generation; available after the last chunk or `close`."""
        if self._result is None:
            raise BitnetError("the generation is not finished: read all of its chunks first")
        return self._result

    def __iter__(self) -> Iterator[TextChunk]:
        return self

    def __next__(self) -> TextChunk:
        while not self._chunks:
            if self._result is not None:
                raise StopIteration
            try:
                self._advance()
            except BaseException:
                self.close()
                raise
        return self._chunks.popleft()

    def read(self) -> Generation:
        """Read all remaining chunks and return the finished generation."""
        for _ in self:
            pass
        return self.result

    def close(self) -> None:
        """Stop generating; `result` is then the generation so far."""
        if self._result is None:
            self._end("cancelled")
        self._chunks.clear()

    def __del__(self) -> None:
        if self._result is None:
            self._engine.abort_request(self._sequence)

    def _advance(self) -> None:
        """Add the next token's chunk to the pending ones, or finish, or run one more step."""
        request = self._sequence
        if self._output.behind:
            self._chunks.append(self._output.advance())
            if self._output.stopped:
                self._end("stop")
        elif request.error is not None:
            raise request.error
        elif request.finish_reason is not None:
            self._end(request.finish_reason)
        else:
            self._step()

    def _step(self) -> None:
        """Run one step, unless a step of another thread has generated tokens for this request meanwhile."""
        with self._engine.lock:
            if self._output.behind or self._sequence.finish_reason is not None:
                return
            prefilling = self._sequence.generated_tokens == 0
            self._engine.step()
        if prefilling and self._progress:
            self._progress("prefill", self._sequence.computed, self._sequence.prompt_tokens)

    def _end(self, reason: FinishReason) -> None:
        self._engine.finish_request(self._sequence, reason)
        self._chunks.extend(self._output.end())
        self._result = self._output.generation(reason)
