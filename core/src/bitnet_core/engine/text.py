"""From tokens to the text a caller sees: pieces as they come, never any part of a stop string."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from bitnet_hal.errors import BitnetError, UsageError

from bitnet_core.engine.engine import Engine
from bitnet_core.engine.logprobs import TokenScore
from bitnet_core.engine.reasoning import Reasoning
from bitnet_core.engine.sequence import FinishReason, Sequence
from bitnet_core.plan.upload import Progress


class Decoder(Protocol):
    """Turns tokens into text as they come, whole characters only."""

    def push(self, token: int) -> str: ...

    def push_all(self, tokens: Iterable[int]) -> str: ...

    def flush(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that a token made certain, perhaps none; token is None for what was held back until the end.

    reasoning: what of it comes before the answer of a chat, between the tags of thinking models; never in text.
    """

    text: str
    token: int | None
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished text. tokens do not hold the stop id, and may end with tokens of a stop string that text leaves out.

    finish_reason: "stop" (a stop id or string), "length" (max_tokens or the context), "cancelled", "error" (only where
    the text was closed after one). prefill_seconds: of the steps up to the first token; decode_seconds: of those after.
    reused_tokens: prompt tokens that another text had computed already. scores: of each token, where logprobs are on.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    prefill_seconds: float
    decode_seconds: float
    reused_tokens: int
    seed: int
    scores: tuple[TokenScore, ...] = ()
    reasoning: str = ""


class StopFilter:
    """Passes text on up to the first stop string, holding back what may become one."""

    def __init__(self, stops: Iterable[str]) -> None:
        self.stops = tuple(stops) if isinstance(stops, Iterable) else (stops,)
        if not all(isinstance(stop, str) and stop for stop in self.stops):
            raise UsageError("stop strings must be texts that are not empty")
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """What can be shown now."""
        if self.stopped:
            return ""
        self._held += text
        found = [at for stop in self.stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            shown, self._held = self._held[: min(found)], ""
            return shown
        keep = max((_overlap(self._held, stop) for stop in self.stops), default=0)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def flush(self) -> str:
        """What was held back, now that nothing follows."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)


class TextMaker:
    """Makes the Pieces of one sequence's text; `text` is what there is so far.

    reasoning: tells a reply's reasoning from its answer; without it all is text. Stop strings end the answer only.
    """

    def __init__(
        self, sequence: Sequence, decoder: Decoder, stops: StopFilter, reasoning: Reasoning | None = None
    ) -> None:
        self.sequence = sequence
        self._decoder, self._stops, self._reasoning = decoder, stops, reasoning
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._seen = 0  # generated tokens that were turned into text

    @property
    def tokens(self) -> tuple[int, ...]:
        """The generated tokens that the text is made of, those of a stop string included."""
        first = self.sequence.prompt_tokens
        return tuple(self.sequence.tokens[first : first + self._seen])

    @property
    def seen(self) -> int:
        """How many they are."""
        return self._seen

    @property
    def text(self) -> str:
        """All pieces so far."""
        return "".join(self._text)

    @property
    def stopped(self) -> bool:
        """A stop string has come: nothing more will."""
        return self._stops.stopped

    @property
    def behind(self) -> bool:
        """There are tokens for `advance`."""
        return not self.stopped and self._seen < self.sequence.generated_tokens

    def advance(self) -> Piece:
        """The next token's piece."""
        token = self.sequence.tokens[self.sequence.prompt_tokens + self._seen]
        self._seen += 1
        if self._reasoning is not None and self._reasoning.take(token):
            self._decoder.flush()  # a character that a tag cuts off is no character
            return self._kept(Piece("", token))
        return self._kept(self._piece(self._decoder.push(token), token))

    def catch_up(self) -> Piece:
        """One piece of all new tokens; its token is the last of them."""
        if self._reasoning is None and not self._stops.stops:
            new = self.sequence.tokens[self.sequence.prompt_tokens + self._seen :]
            self._seen += len(new)
            return self._kept(Piece(self._decoder.push_all(new), new[-1] if new else None))
        pieces = [Piece("", None)]
        while self.behind:
            pieces.append(self.advance())
        text, thoughts = "".join(piece.text for piece in pieces), "".join(piece.reasoning for piece in pieces)
        return Piece(text, pieces[-1].token, thoughts)

    def end(self) -> list[Piece]:
        """What was held back, now that nothing follows."""
        if self.stopped:
            return []
        last = self._piece(self._decoder.flush(), None)
        last = replace(last, text=last.text + self._stops.flush())
        return [self._kept(last)] if last.text or last.reasoning else []

    def generation(self, reason: FinishReason) -> Generation:
        """The whole text, ended for this reason."""
        sequence = self.sequence
        return Generation(
            text=self.text,
            tokens=self.tokens,
            finish_reason=reason,
            prompt_tokens=sequence.prompt_tokens,
            prefill_seconds=sequence.prefill_seconds,
            decode_seconds=sequence.decode_seconds,
            reused_tokens=sequence.reused,
            seed=sequence.sampler.seed,
            scores=tuple(sequence.sampler.scores[: self._seen]),
            reasoning="".join(self._thoughts).rstrip("\n"),
        )

    def _kept(self, piece: Piece) -> Piece:
        self._text.append(piece.text)
        self._thoughts.append(piece.reasoning)
        return piece

    def _piece(self, text: str, token: int | None) -> Piece:
        if self._reasoning is None:
            return Piece(self._stops.push(text), token)
        text = self._reasoning.trimmed(text)
        if self._reasoning.inside:
            return Piece("", token, text)
        return Piece(self._stops.push(text), token)


class GenerationStream:
    """Iterates over the Pieces of one text; `.result` is there when the iteration is over."""

    def __init__(self, engine: Engine, maker: TextMaker, progress: Progress | None = None) -> None:
        self._engine, self._maker, self._progress = engine, maker, progress
        self._sequence = maker.sequence
        self._pieces: deque[Piece] = deque()
        self._result: Generation | None = None

    @property
    def result(self) -> Generation:
        """The whole text; only after the last piece or `close`."""
        if self._result is None:
            raise BitnetError("the text is not finished: read all of its pieces first")
        return self._result

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        while not self._pieces:
            if self._result is not None:
                raise StopIteration
            try:
                self._advance()
            except BaseException:
                self.close()
                raise
        return self._pieces.popleft()

    def read(self) -> Generation:
        """All that is left, and then the whole text."""
        for _ in self:
            pass
        return self.result

    def close(self) -> None:
        """Stop generating; what there is becomes the result."""
        if self._result is None:
            self._end("cancelled")
        self._pieces.clear()

    def __del__(self) -> None:
        if self._result is None:
            self._engine.abandon(self._sequence)

    def _advance(self) -> None:
        """Text of the next token, or the end, or one more step."""
        sequence = self._sequence
        if self._maker.behind:
            self._pieces.append(self._maker.advance())
            if self._maker.stopped:
                self._end("stop")
        elif sequence.error is not None:
            raise sequence.error
        elif sequence.finish_reason is not None:
            self._end(sequence.finish_reason)
        else:
            self._step()

    def _step(self) -> None:
        """One step for every text, unless another thread's gave this one something meanwhile."""
        with self._engine.lock:
            if self._maker.behind or self._sequence.finish_reason is not None:
                return
            prefilling = self._sequence.generated_tokens == 0
            self._engine.step()
        if prefilling and self._progress:
            self._progress("prefill", self._sequence.computed, self._sequence.prompt_tokens)

    def _end(self, reason: FinishReason) -> None:
        self._engine.finish(self._sequence, reason)
        self._pieces.extend(self._maker.end())
        self._result = self._maker.generation(reason)
