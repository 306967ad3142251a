"""A replica: a model on one of several devices, with its engine, thread, speed and requests."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, cast

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
    """The methods of RemoteEngine that a replica uses; they are described there."""

    def leave(self) -> None: ...

    def beside(self, device: DescribedDevice) -> ReplicaEngine: ...

    def resume(self, device: DescribedDevice) -> None: ...


State = Literal["loading", "ready", "away"]

RETURN_SECONDS = 10.0
"""Seconds before a failed device is tried again; doubled after each failure, up to _LONGEST_PAUSE."""

_LONGEST_PAUSE = 300.0
_STABLE = 600.0
"""Seconds of operation after which earlier failures of a device no longer count."""

_HANGING = 60.0
"""Duration of one step in seconds after which a device gets no more requests."""


@dataclass(frozen=True, slots=True)
class EngineOwner:
    """An owner of the engine on a further device, which EngineThread closes."""

    engine: ReplicaEngine

    def close(self) -> None:
        """Close the engine and its device."""
        self.engine.close()


@dataclass(frozen=True, slots=True)
class DeviceState:
    """The state of one device for status pages and metrics. requests: number of those running or waiting there. reason:
    why it is away."""

    device: str
    name: str
    state: State
    requests: int
    generated_tokens: int
    reason: str


class Replica(Generic[M]):
    """A model on one device. name: its device request, such as "cuda:0".

    state: "away" if its device failed, at time.monotonic() `left` with the error `failure`. requests: those assigned to
    it that have not ended, in order. The dispatcher's lock guards all of them.
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
        self.returns = 0  # times that its device was used again after a failure
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
        """True if the thread runs and its step does not take longer than the waits for the device may."""
        remote = _remote(self.engine)
        since = self.thread.stepping_since if remote is None else remote.waiting_since
        if since is None or not self.thread.alive:
            return self.thread.alive
        # of BaseDevice, or of its process
        limit = 0.0 if self.engine is None else getattr(self.engine.device, "timeout", 0.0)
        return time.monotonic() - since < max(_HANGING, limit)

    @property
    def slots(self) -> int:
        """Maximum number of concurrent requests."""
        return self.engine.sequences if self.engine is not None else 0

    def describe(self) -> DeviceState:
        """Return the state of the device."""
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
        """Change the state to "ready"."""
        if (remote := _remote(engine)) is not None:
            self.thread.interrupt = remote.interrupt
            remote.lost = self._wake
        self.state, self.failure = "ready", None
        self._ready_since = time.monotonic()

    def _wake(self) -> None:
        """Make the thread run a step, in which it detects that the process of its device has ended."""
        with suppress(BitnetError):  # the thread has ended
            self.thread.call(lambda model: None)

    def leave(self, error: Exception) -> None:
        """Change the state to "away"."""
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

    @property
    def card(self) -> str:
        """The card of the device: equal if two APIs list the same one."""
        card = "" if self.engine is None else self.engine.device.info.physical_id
        return card or self.name

    @property
    def full_rate(self) -> float:
        """Expected tokens per second of decode steps with all slots in use; infinite before any measurement."""
        seconds = self.speed.step_seconds(self.slots)
        return self.slots / seconds if seconds else math.inf

    def measure(self, engine: ServingEngine) -> None:
        """Measure the speed of the device; runs in the thread."""
        remote = _remote(engine)
        self._meter.start(engine, measured_speed(engine) if remote is None else remote.apply(measured_speed))

    def learn(self, engine: ServingEngine, outputs: list[RequestOutput]) -> None:
        """Update the speed with the duration of the last step, which returned these outputs."""
        self._meter.learn(engine, outputs)


def fastest_of_each_card(replicas: Iterable[Replica[Any]]) -> list[Replica[Any]]:
    """Return one replica for each card: under two APIs, its programs would wait for each other."""
    by_card: dict[str, Replica[Any]] = {}
    for replica in replicas:
        other = by_card.get(replica.card)
        if other is None or replica.full_rate > other.full_rate:
            by_card[replica.card] = replica
    return list(by_card.values())


def _remote(engine: ServingEngine | None) -> RemoteEngine | None:
    """Return the engine if it runs in another process, else None."""
    from bitnet_core.engine.replicas.remote_engine import RemoteEngine

    return engine if isinstance(engine, RemoteEngine) else None
