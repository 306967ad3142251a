"""From tokens to the text a caller sees: pieces as they come, never any part of a stop string."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from bitnet_core.engine.engine import Engine
from bitnet_core.engine.sequence import FinishReason, Sequence
from bitnet_core.errors import BitnetError, UsageError
from bitnet_core.model.upload import Progress


class Decoder(Protocol):
    """Turns tokens into text as they come, whole characters only."""

    def push(self, token: int) -> str: ...

    def flush(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that a token made certain, perhaps none; token is None for what was held back until the end."""

    text: str
    token: int | None


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished text. tokens do not hold the stop id, and may end with tokens of a stop string that text leaves out.

    finish_reason: "stop" (a stop id or string), "length" (max_tokens or the context), "cancelled".
    decode_seconds: for all tokens after the first, which belongs to the prefill.
    reused_tokens: prompt tokens that an earlier text had computed already.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    prefill_seconds: float
    decode_seconds: float
    reused_tokens: int
    seed: int


class StopFilter:
    """Passes text on up to the first stop string, holding back what may become one."""

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stops)
        if not all(self._stops):
            raise UsageError("a stop string is empty")
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """What can be shown now."""
        if self.stopped:
            return ""
        self._held += text
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            shown, self._held = self._held[: min(found)], ""
            return shown
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def flush(self) -> str:
        """What was held back, now that nothing follows."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)


class GenerationStream:
    """Iterates over the Pieces of one text; `.result` is there when the iteration is over."""

    def __init__(
        self, engine: Engine, sequence: Sequence, decoder: Decoder, stops: StopFilter, progress: Progress | None = None
    ) -> None:
        self._engine, self._sequence, self._decoder, self._stops = engine, sequence, decoder, stops
        self._progress = progress
        self._pieces: deque[Piece] = deque()
        self._text: list[str] = []
        self._seen = 0  # generated tokens that were turned into text
        self._prefill = self._decode = 0.0
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

    def close(self) -> None:
        """Stop generating; what there is becomes the result."""
        if self._result is None:
            self._end("cancelled")
        self._pieces.clear()

    def __del__(self) -> None:
        if self._result is None:
            self._engine.finish(self._sequence)

    def _advance(self) -> None:
        """Text of the next token, or the end, or one more step."""
        if self._seen < self._sequence.generated_tokens:
            token = self._sequence.tokens[self._sequence.prompt_tokens + self._seen]
            self._seen += 1
            self._emit(self._stops.push(self._decoder.push(token)), token)
            if self._stops.stopped:
                self._end("stop")
        elif self._sequence.finish_reason is not None:
            self._end(self._sequence.finish_reason)
        else:
            self._step()

    def _step(self) -> None:
        prefilling = self._sequence.generated_tokens == 0
        began = time.perf_counter()
        self._engine.step()
        took = time.perf_counter() - began
        if prefilling:
            self._prefill += took
            if self._progress:
                self._progress("prefill", self._sequence.computed, self._sequence.prompt_tokens)
        else:
            self._decode += took

    def _emit(self, text: str, token: int | None) -> None:
        self._text.append(text)
        self._pieces.append(Piece(text, token))

    def _end(self, reason: FinishReason) -> None:
        self._engine.finish(self._sequence, reason)
        if not self._stops.stopped:
            rest = self._stops.push(self._decoder.flush())
            if rest := rest + self._stops.flush():
                self._emit(rest, None)
        sequence = self._sequence
        self._result = Generation(
            text="".join(self._text),
            tokens=tuple(sequence.tokens[sequence.prompt_tokens : sequence.prompt_tokens + self._seen]),
            finish_reason=reason,
            prompt_tokens=sequence.prompt_tokens,
            prefill_seconds=self._prefill,
            decode_seconds=self._decode,
            reused_tokens=min(sequence.reused, sequence.prompt_tokens),
            seed=sequence.sampler.seed,
        )
