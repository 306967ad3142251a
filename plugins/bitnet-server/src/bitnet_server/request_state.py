"""The state of a generation request: the engine's thread adds output, the event loop takes it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # they take long to import: the server listens meanwhile
    from bitnet_core.engine.output import OutputProcessor, StopFilter
    from bitnet_core.engine.request.reasoning import Reasoning
    from bitnet_core.engine.request.request import Request, Scored
    from bitnet_core.engine.sampling.constraint import Constraint
    from bitnet_core.engine.sampling.logprobs import TokenScore
    from bitnet_core.engine.serving import ServingEngine
    from bitnet_core.options.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request for one text. index: its choice in the response."""

    index: int
    tokens: list[int]
    sampling: SamplingParams
    max_tokens: int
    stop_token_ids: frozenset[int]
    stops: StopFilter
    constraint: Constraint | None = None
    scored: Scored | None = None
    reasoning: Reasoning | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """The new output of one request. tokens: their number; finish: "stop", "length" or "error" in the last one."""

    index: int
    text: str
    tokens: int
    scores: tuple[TokenScore, ...] = ()
    reasoning: str = ""  # of a model that thinks first
    finish: str | None = None
    error: Exception | None = None


MAX_BACKLOG = 16 << 20
"""Most bytes of output, about, that a stream keeps for a client that reads slowly."""

_DELTA_BYTES, _SCORE_BYTES = 300, 120  # about what the objects take: of a delta, of a token's log probability


@dataclass(slots=True)
class OutputQueue:
    """The output that a client has not received yet; used on the event loop only.

    finished: set when a request has ended. overflow: called while there are more than MAX_BACKLOG bytes.
    """

    deltas: deque[Delta] = field(default_factory=deque)
    event: asyncio.Event = field(default_factory=asyncio.Event)
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    overflow: Callable[[], None] | None = None
    backlog: int = 0

    def put(self, delta: Delta) -> None:
        """Add output and wake the reader."""
        self.deltas.append(delta)
        self.backlog += _DELTA_BYTES + len(delta.text) + len(delta.reasoning)
        if delta.scores:
            self.backlog += _SCORE_BYTES * sum(1 + len(score.top) for score in delta.scores)
        self.event.set()
        if delta.finish is not None:
            self.finished.set()
        if self.backlog > MAX_BACKLOG and self.overflow is not None:
            self.overflow()

    def take(self) -> list[Delta]:
        """Remove and return all output."""
        taken = list(self.deltas)
        self.deltas.clear()
        self.backlog = 0
        self.event.clear()
        return taken


@dataclass(slots=True, eq=False)
class RequestState:
    """A generation request under way. `output` and `request` belong to the engine's thread, which calls `advance`."""

    index: int
    output: OutputProcessor
    queue: OutputQueue
    created: float
    first: float = 0.0  # time.perf_counter() of the first token, on the event loop
    last: float = 0.0
    over: bool = False

    @property
    def request(self) -> Request:
        """Return the engine's request."""
        return self.output.request

    def advance(self, engine: ServingEngine) -> Delta | None:
        """Process the output of a step; end the request at a stop string."""
        request, output = self.request, self.output
        before = output.seen
        chunk = output.advance_all()
        text, thoughts = chunk.text, chunk.reasoning
        if output.stopped and request.finish_reason is None:
            engine.finish_request(request, "stop")
        finish = "stop" if output.stopped else request.finish_reason
        if finish is not None:
            for last in output.end():
                text, thoughts = text + last.text, thoughts + last.reasoning
        after = output.seen
        if after == before and finish is None:
            return None
        scores = tuple(request.sampler.scores[before:after])
        return Delta(self.index, text, after - before, scores, thoughts, finish, request.error)


def now() -> float:
    """Return the time in seconds on the clock of all times here."""
    return time.perf_counter()
