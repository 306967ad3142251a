"""Texts in the making, seen from both sides: the engine's thread puts what is new in, a request takes it out."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # they take long to import: the server listens meanwhile
    from bitnet_core.engine.constraint import Constraint
    from bitnet_core.engine.engine import Engine
    from bitnet_core.engine.logprobs import TokenScore
    from bitnet_core.engine.reasoning import Reasoning
    from bitnet_core.engine.sampling import SamplingParams
    from bitnet_core.engine.sequence import Scored, Sequence
    from bitnet_core.engine.text import StopFilter, TextMaker


@dataclass(frozen=True, slots=True)
class Order:
    """One text to be made. index: its choice in the answer."""

    index: int
    tokens: list[int]
    sampling: SamplingParams
    max_tokens: int
    stop_ids: frozenset[int]
    stops: StopFilter
    constraint: Constraint | None = None
    scored: Scored | None = None
    reasoning: Reasoning | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new in one text. tokens: how many; finish: "stop", "length" or "error" with the last one."""

    index: int
    text: str
    tokens: int
    scores: tuple[TokenScore, ...] = ()
    reasoning: str = ""  # of a model that thinks first
    finish: str | None = None
    error: Exception | None = None


@dataclass(slots=True)
class Inbox:
    """What a request has not read yet; used on the event loop only."""

    deltas: deque[Delta] = field(default_factory=deque)
    event: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, delta: Delta) -> None:
        """Add, and wake whoever waits."""
        self.deltas.append(delta)
        self.event.set()

    def take(self) -> list[Delta]:
        """Everything that came."""
        taken = list(self.deltas)
        self.deltas.clear()
        self.event.clear()
        return taken


@dataclass(slots=True, eq=False)
class Job:
    """One text. `maker` and `sequence` belong to the engine's thread, which `advance` runs in."""

    index: int
    maker: TextMaker
    inbox: Inbox
    created: float
    first: float = 0.0  # time.perf_counter() of the first token, on the event loop
    last: float = 0.0
    over: bool = False

    @property
    def sequence(self) -> Sequence:
        """Its tokens and times."""
        return self.maker.sequence

    def advance(self, engine: Engine) -> Delta | None:
        """What a step gave; ends the text at a stop string."""
        sequence, maker = self.sequence, self.maker
        before = maker.seen
        piece = maker.catch_up()
        text, thoughts = piece.text, piece.reasoning
        if maker.stopped and sequence.finish_reason is None:
            engine.finish(sequence, "stop")
        finish = "stop" if maker.stopped else sequence.finish_reason
        if finish is not None:
            for last in maker.end():
                text, thoughts = text + last.text, thoughts + last.reasoning
        after = maker.seen
        if after == before and finish is None:
            return None
        scores = tuple(sequence.sampler.scores[before:after])
        return Delta(self.index, text, after - before, scores, thoughts, finish, sequence.error)


def now() -> float:
    """The clock of all times here."""
    return time.perf_counter()
