"""A model on one device of several: its engine, its thread, its speed and its requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, Protocol, cast

from bitnet_hal.errors import BitnetError

from bitnet_core.engine.replicas.measured_speed import SpeedMeter, measured_speed
from bitnet_core.engine.serving import DescribedDevice, ServingEngine
from bitnet_core.engine.thread import EngineThread, M

if TYPE_CHECKING:  # slow imports: a server should listen before them
    from bitnet_core.engine.replicas.remote_engine import RemoteEngine
    from bitnet_core.engine.replicas.speed import DeviceSpeed
    from bitnet_core.engine.request.request import Request
    from bitnet_core.engine.schedule.results import RequestOutput


class ReplicaEngine(ServingEngine, Protocol):
    """A RemoteEngine; the members are described there."""

    def leave(self) -> None: ...

    def beside(self, device: DescribedDevice) -> ReplicaEngine: ...

    def resume(self, device: DescribedDevice) -> None: ...


State = Literal["loading", "ready", "away"]

RETURN_SECONDS = 10.0
"""Seconds before a device that failed is tried again: twice as many after each time, at most _LONGEST_PAUSE."""

_LONGEST_PAUSE = 300.0
_STABLE = 600.0
"""Seconds of work after which earlier failures of a device are forgotten."""

_HANGING = 60.0
"""Seconds of one step after which a device gets no more requests."""


@dataclass(frozen=True, slots=True)
class EngineOwner:
    """The owner of an engine on a further device: an EngineThread closes it."""

    engine: ReplicaEngine

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
        self._meter = SpeedMeter()
        self.thread: EngineThread[M] = EngineThread(
            load, lambda outputs: deliver(self, outputs), lambda error: failed(self, error)
        )

    @property
    def engine(self) -> ReplicaEngine | None:
        """The engine, None until it is loaded."""
        # a Model of a set has a RemoteEngine
        return None if self.thread.model is None else cast(ReplicaEngine, self.thread.model.engine)

    @property
    def responsive(self) -> bool:
        """The thread runs and is not stuck in a step: a step with much work may take as long as its waits."""
        remote = _remote(self.engine)
        since = self.thread.stepping_since if remote is None else remote.waiting_since
        if since is None or not self.thread.alive:
            return self.thread.alive
        # of BaseDevice, or of its process
        limit = 0.0 if self.engine is None else getattr(self.engine.device, "timeout", 0.0)
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

    def enter(self, engine: ServingEngine) -> None:
        """Note that the device takes requests."""
        if (remote := _remote(engine)) is not None:
            self.thread.interrupt = remote.interrupt
            remote.lost = self._wake
        self.state, self.failure = "ready", None
        self._ready_since = time.monotonic()

    def _wake(self) -> None:
        """Let the thread take a step, in which it learns that the process of its device has ended."""
        with suppress(BitnetError):  # the thread has ended
            self.thread.call(lambda model: None)

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

    @property
    def speed(self) -> DeviceSpeed:
        """The speed of the device."""
        return self._meter.speed

    def measure(self, engine: ServingEngine) -> None:
        """Measure the speed of the device; runs in the thread."""
        remote = _remote(engine)
        self._meter.start(engine, measured_speed(engine) if remote is None else remote.apply(measured_speed))

    def learn(self, engine: ServingEngine, outputs: list[RequestOutput]) -> None:
        """Learn from the duration of the last step, which gave these outputs."""
        self._meter.learn(engine, outputs)


def _remote(engine: ServingEngine | None) -> RemoteEngine | None:
    """Return an engine of another process, None for one of this."""
    from bitnet_core.engine.replicas.remote_engine import RemoteEngine

    return engine if isinstance(engine, RemoteEngine) else None
