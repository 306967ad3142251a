"""A model on one device of several: its engine, its thread, its speed and its requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal

from bitnet_core.engine.replicas.speed import DeviceSpeed
from bitnet_core.engine.thread import EngineThread, M

if TYPE_CHECKING:  # slow imports: a server should listen before them
    from bitnet_core.engine.engine import Engine
    from bitnet_core.engine.request.request import Request
    from bitnet_core.engine.schedule.results import RequestOutput

State = Literal["loading", "ready", "away"]

RETURN_SECONDS = 10.0
"""Seconds before a device that failed is tried again: twice as many after each time, at most _LONGEST_PAUSE."""

_LONGEST_PAUSE = 300.0
_STABLE = 600.0
"""Seconds of work after which earlier failures of a device are forgotten."""

_HANGING = 60.0
"""Seconds of one step after which a device gets no more requests."""

_PROMPT, _TOKENS, _TOGETHER = 24, 6, 4
"""Tokens of a prompt and of an answer, and requests together, of the first measurement: less than a block of the
cache, so that no prefix is kept."""


@dataclass(frozen=True, slots=True)
class EngineOwner:
    """The owner of an engine on a further device: an EngineThread closes it."""

    engine: Engine

    def close(self) -> None:
        """Close the engine and its device."""
        self.engine.close()


@dataclass(frozen=True, slots=True)
class DeviceState:
    """The state of one device for people and metrics. requests: running or waiting there. reason: why it is away."""

    device: str
    name: str
    state: State
    requests: int
    generated_tokens: int
    reason: str


class Replica(Generic[M]):
    """A model on one device. name: its request, such as "cuda:0".

    state: "away" if its device failed, at time.monotonic() `left` with the error `failure`. requests: those given to it
    that have not ended, in order. The set's lock guards them.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[], M],
        deliver: Callable[[Replica[M], list[RequestOutput]], None],
        failed: Callable[[Replica[M], Exception], bool],
    ) -> None:
        self.name = name
        self.state: State = "loading"
        self.failure: Exception | None = None
        self.returns = 0  # times that it was taken in again
        self.left = 0.0
        self._ready_since = 0.0
        self.requests: dict[Request, None] = {}
        self.speed = DeviceSpeed()
        self.thread: EngineThread[M] = EngineThread(
            load, lambda outputs: deliver(self, outputs), lambda error: failed(self, error)
        )
        self._seen: tuple[float, float, int] = (0.0, 0.0, 0)

    @property
    def engine(self) -> Engine | None:
        """The engine, None until it is loaded."""
        return None if self.thread.model is None else self.thread.model.engine

    @property
    def responsive(self) -> bool:
        """The thread runs and is not stuck in a step: a step with much work may take as long as its waits."""
        since = self.thread.stepping_since
        if since is None or not self.thread.alive:
            return self.thread.alive
        limit = 0.0 if self.engine is None else getattr(self.engine.device, "timeout", 0.0)  # of BaseDevice
        return time.monotonic() - since < max(_HANGING, limit)

    @property
    def slots(self) -> int:
        """Largest number of requests that run at once."""
        return self.engine.sequences if self.engine is not None else 0

    def describe(self) -> DeviceState:
        """Return the state for people."""
        engine = self.engine
        return DeviceState(
            self.name if engine is None else engine.device.info.request,
            "" if engine is None else engine.device.info.name,
            self.state,
            len(self.requests),
            0 if engine is None else engine.scheduler.counts["generated_tokens"],
            "" if self.failure is None else str(self.failure),
        )

    def enter(self) -> None:
        """Note that the device takes requests."""
        self.state, self.failure = "ready", None
        self._ready_since = time.monotonic()

    def leave(self, error: Exception) -> None:
        """Note that the device failed."""
        now = time.monotonic()
        if self.state == "ready" and now - self._ready_since > _STABLE:
            self.returns = 0
        self.state, self.failure, self.left = "away", error, now

    @property
    def may_return(self) -> bool:
        """True if the device failed long enough ago to be tried again."""
        return time.monotonic() - self.left > min(RETURN_SECONDS * 2.0 ** min(self.returns, 10), _LONGEST_PAUSE)

    def measure(self, engine: Engine) -> None:
        """Measure the speed of prompts and of steps of one and several requests; runs in the thread. The engine's
        counters and seconds do not change."""
        scheduler = engine.scheduler
        counts, seconds = dict(scheduler.counts), dict(scheduler.seconds)
        for run, requests in enumerate((1, _TOGETHER, 1, _TOGETHER)):  # the first two compile
            if run < 3:
                self.speed = DeviceSpeed()
            prompts = [[(7 * at + token) % engine.config.tokens for token in range(_PROMPT)] for at in range(requests)]
            length = min(_PROMPT, engine.max_model_len - _TOKENS)
            for prompt in prompts[: engine.sequences]:
                engine.add_request(prompt[: max(1, length)], max_tokens=min(_TOKENS, engine.max_model_len - 1))
            self._seen = _totals(engine)
            while outputs := engine.step():
                self.learn(engine, outputs)
        scheduler.counts.update(counts)
        scheduler.seconds.update(seconds)
        self._seen = _totals(engine)

    def learn(self, engine: Engine, outputs: list[RequestOutput]) -> None:
        """Add the duration of the last step, which gave these outputs, to the speed."""
        prefill, decode, tokens = totals = _totals(engine)
        before = self._seen
        self._seen = totals
        if prefill > before[0]:
            self.speed.add_prompt(tokens - before[2], prefill - before[0])
        steps = max((len(output.tokens) for output in outputs), default=0)
        if decode > before[1] and steps:
            self.speed.add_step(len(outputs), (decode - before[1]) / steps)


def _totals(engine: Engine) -> tuple[float, float, int]:
    """Return the seconds of steps with prompts and without, and the prompt tokens that were computed."""
    scheduler = engine.scheduler
    computed = scheduler.counts["prompt_tokens"] - scheduler.counts["prefix_hits"]
    return scheduler.seconds["prefill"], scheduler.seconds["decode"], computed
