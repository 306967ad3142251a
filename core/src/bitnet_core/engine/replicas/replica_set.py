"""A model on one or more devices, which may fail, return or be added: their engines and threads."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from bitnet_hal.errors import DEVICE_FAILURES, BitnetError, DeviceLostError, OutOfMemoryError, UsageError

from bitnet_core.engine.replicas.arrivals import Arrivals, OtherDevices
from bitnet_core.engine.replicas.dispatch import Deliver, Dispatcher
from bitnet_core.engine.replicas.replica import DeviceState, EngineOwner, Replica
from bitnet_core.engine.thread import HasEngine

if TYPE_CHECKING:  # slow imports: a server should listen before them
    from bitnet_hal.device import DeviceInfo

    from bitnet_core.engine.request.request import Request
    from bitnet_core.engine.schedule.results import RequestOutput
    from bitnet_core.engine.serving import DescribedDevice, ServingEngine

log = logging.getLogger(__name__)

T = TypeVar("T")


class HasReplicas(HasEngine, Protocol):
    """A model that may have further devices, such as Model."""

    others: OtherDevices | None


R = TypeVar("R", bound=HasReplicas)


class ReplicaSet(Generic[R]):
    """The replicas of a model behind one queue: each request goes to the device on which it should end first.

    load: opens the model on the first device, in that replica's thread; the model's `others` are the further devices.
    deliver: called with the outputs of steps.
    """

    def __init__(self, load: Callable[[], R], deliver: Deliver) -> None:
        self._dispatcher = Dispatcher(deliver)
        self._others: OtherDevices | None = None
        self._arrivals: Arrivals | None = None
        self._begun = False
        self._fatal: Exception | None = None
        self._first: Replica[R] = Replica("", load, self._outputs, self._failed)
        self._dispatcher.replicas.append(self._first)

    def start(self) -> None:
        """Start the first replica, which loads the model and then starts the others."""
        self._first.thread.call(self._load_others)
        self._first.thread.start()

    def close(self, timeout: float | None = None) -> None:
        """End all requests, close the engines and then the model; may be called twice."""
        with self._dispatcher.lock:
            if self._dispatcher.closing:
                return
            self._dispatcher.closing = True
        if self._arrivals is not None:
            self._arrivals.stop()
        engine = self._first.engine
        for replica in (*self.replicas[1:], self._first):
            replica.thread.close(timeout)
        if engine is not None:
            self._dispatcher.fail_rest(BitnetError("the model is closed"), engine)

    @property
    def replicas(self) -> list[Replica[Any]]:
        """The replicas, the first one included."""
        with self._dispatcher.lock:
            return self._dispatcher.replicas.copy()

    @property
    def model(self) -> R | None:
        """The model, None until it is loaded and its first device takes requests."""
        return self._first.thread.model if self._begun else None

    @property
    def error(self) -> Exception | None:
        """The exception that made generation impossible, else None."""
        if self._fatal is not None or self._first.thread.model is None:
            return self._fatal or self._first.thread.error
        return self._dispatcher.lost

    @property
    def alive(self) -> bool:
        """True if a replica is responsive."""
        return any(replica.responsive for replica in self.replicas)

    @property
    def slots(self) -> int:
        """Maximum number of concurrent requests on all devices."""
        return sum(replica.slots for replica in self.replicas if replica.state == "ready")

    def call(self, action: Callable[[R], T]) -> Future[T]:
        """Run action(model) in the first replica's thread, as EngineThread.call."""
        return self._first.thread.call(action)

    def submit(self, requests: Iterable[Request]) -> None:
        """Queue requests that an engine of this model made (`Engine.new_request`)."""
        self._dispatcher.submit(requests)

    def cancel(self, requests: Iterable[Request]) -> None:
        """End requests; those that have ended are left alone."""
        self._dispatcher.cancel(requests)

    def fail_all(self, error: Exception) -> None:
        """End every request with an error."""
        self._dispatcher.fail_all(error)

    # Figures.

    def devices(self) -> list[DeviceState]:
        """Return the state of every device."""
        with self._dispatcher.lock:
            return [replica.describe() for replica in self._dispatcher.replicas]

    @property
    def handovers(self) -> dict[str, int]:
        """Number of requests that each device handed over to others when it failed."""
        return dict(self._dispatcher.handovers)

    def requests(self) -> list[tuple[str, Request]]:
        """Return every request that has not ended, as ("running" or "waiting", request)."""
        with self._dispatcher.lock:
            given = [request for replica in self._dispatcher.replicas for request in replica.requests]
            waiting = self._dispatcher.waiting
        every = [("waiting" if request.req_index < 0 else "running", request) for request in given]
        return sorted(every, key=lambda pair: pair[0]) + [("waiting", request) for request in waiting]

    @property
    def engines(self) -> list[ServingEngine]:
        """The engines with a device."""
        return [replica.engine for replica in self.replicas if replica.engine is not None and replica.state == "ready"]

    def figures(self) -> dict[str, int | float]:
        """Return Engine.figures, summed over the devices; cache_use is the mean of those in use."""
        total: dict[str, int | float] = {}
        for engine in self._loaded():
            for name, value in engine.figures().items():
                total[name] = total.get(name, 0) + value
        total["waiting"] += len(self._dispatcher.waiting)
        total["cache_use"] /= max(1, len(self.engines))
        return total

    def memory(self) -> dict[str, int]:
        """Return the bytes on all devices by use: the names of Worker.memory without "_bytes"."""
        total: Counter[str] = Counter()
        for engine in self.engines:
            with suppress(UsageError, DeviceLostError):  # its device failed meanwhile
                memory = engine.memory()
                total.update({name: int(size) for name, size in memory.items() if name.endswith("_bytes")})
        return {name.removesuffix("_bytes"): size for name, size in total.items()}

    def kernel_launches(self) -> dict[str, int]:
        """Return the number of launches by device."""
        total: Counter[str] = Counter()
        for engine in self._loaded():
            total.update({device: counts.total() for device, counts in engine.kernel_launches_by_device.items()})
        return dict(total)

    def error_counts(self) -> dict[str, int]:
        """Return the number of errors by kind, including those that an engine recovered from."""
        return dict(sum((engine.scheduler.errors.counts for engine in self._loaded()), Counter[str]()))

    def _loaded(self) -> list[ServingEngine]:
        return [replica.engine for replica in self.replicas if replica.engine is not None]

    # Called in the threads of the replicas.

    def _load_others(self, model: R) -> None:
        """Start to serve on the first device, and start the replicas of the others."""
        first = self._first
        first.name = model.engine.device.info.request
        self._others = model.others
        if self._others is None:
            self._begin(first, model, measured=False)
            self._begun = True
            return
        self._dispatcher.several = True
        names = self._others.names(first.name)
        if names and model.engine.config.pooling:
            self._unusable(first, UsageError("a model that embeds texts uses one device: name one"))
            return
        self._begin(first, model, measured=bool(names))
        self._begun = True
        for name in names:
            self._add(name, partial(self._others.open, name))
        self._arrivals = Arrivals(self._others, lambda: self.replicas, self._take_in)
        self._arrivals.start()

    def _add(self, name: str, open_device: Callable[[], DescribedDevice], returns: int = 0) -> None:
        """Start a replica on a further device, with the model of the first one."""
        replica: Replica[EngineOwner] = Replica(
            name, lambda: self._placed(replica, open_device), self._outputs, self._failed
        )
        replica.returns = returns
        replica.thread.call(partial(self._begin, replica))
        with self._dispatcher.lock:
            self._dispatcher.replicas.append(replica)
        replica.thread.start()

    def _placed(self, replica: Replica[EngineOwner], open_device: Callable[[], DescribedDevice]) -> EngineOwner:
        first = self._first.engine
        assert first is not None
        try:
            return EngineOwner(first.beside(open_device()))
        except Exception as exc:
            self._unusable(replica, exc)
            raise

    def _take_in(self, name: str, info: DeviceInfo) -> None:
        """Use a device that is usable again, or a new one; called in the thread of Arrivals."""
        assert self._others is not None
        with self._dispatcher.lock:
            if self._dispatcher.closing:
                return
            replica = next((replica for replica in self._dispatcher.replicas if replica.name == name), None)
            if replica is not None and replica.state != "away":
                return
            if replica is not None and replica.engine is not None:
                replica.state = "loading"
                replica.returns += 1
                replica.thread.call(partial(self._resume, replica, info))
                return
            if replica is not None:  # it was never loaded, and its thread has ended
                self._dispatcher.replicas.remove(replica)
            self._add(name, partial(self._others.reopen, info), 1 if replica is None else replica.returns + 1)

    def _resume(self, replica: Replica[Any], info: DeviceInfo, model: HasEngine) -> None:
        engine = replica.engine
        assert self._others is not None
        assert engine is not None
        try:
            engine.resume(self._others.reopen(info))
        except Exception as exc:  # noqa: BLE001 - its future has no reader
            self._unusable(replica, exc)
        else:
            self._begin(replica, model)

    def _begin(self, replica: Replica[Any], model: HasEngine, *, measured: bool = True) -> None:
        """Start to accept requests. measured: measure the speed of the device first."""
        engine = replica.engine
        assert engine is not None
        try:
            if measured:
                replica.measure(engine)
        except Exception as exc:  # noqa: BLE001 - its future has no reader
            engine.leave()
            self._unusable(replica, exc)
            return
        log.info("%s (%s) takes requests", replica.name, engine.device.info.name)
        with self._dispatcher.lock:
            replica.enter(engine)
            self._set_pace()
            self._dispatcher.assign()

    def _unusable(self, replica: Replica[Any], error: Exception) -> None:
        """Mark a device as away; if the user named it and it fails at the start, the whole set fails."""
        required = self._others is None or self._others.required or replica is self._first
        ends = required and not replica.returns
        if not ends:  # else the caller of `start` reports the error
            log.warning("%s cannot be used: %s", replica.name, error)
        with self._dispatcher.lock:
            replica.leave(error)
            if ends:
                self._fatal = self._fatal or error
            self._dispatcher.assign()

    def _outputs(self, replica: Replica[Any], outputs: list[RequestOutput]) -> None:
        if replica.engine is not None:
            replica.learn(replica.engine, outputs)
        self._dispatcher.outputs(replica, outputs)

    def _failed(self, replica: Replica[Any], error: Exception) -> bool:
        """Hand the requests of a failed device over to the others; False if there are no others, or the error is not a
        device failure."""
        engine = replica.engine
        if engine is None or not isinstance(error, (OutOfMemoryError, *DEVICE_FAILURES)):
            return False
        with self._dispatcher.lock:
            others = any(other.state != "away" for other in self._dispatcher.replicas if other is not replica)
            if others or isinstance(error, DeviceLostError):
                replica.leave(error)
            if not others:
                self._dispatcher.assign()
                return False
        engine.leave()
        count = self._dispatcher.withdraw(replica, error)
        log.warning("%s failed (%s); %d requests go on elsewhere", replica.name, error, count)
        return True

    def _set_pace(self) -> None:
        """Let each of n devices deliver its tokens every n intervals: one process sends those of all devices, and the
        cost of an output hardly depends on its number of tokens."""
        replicas = self.replicas
        for replica in replicas:
            if replica.engine is not None:
                interval = replica.engine.options.stream_interval
                replica.engine.set_pace(interval * len(replicas))
