"""A thread that owns a model: it opens the model, steps its engine while there is work, and closes it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from bitnet_hal.errors import BitnetError, DeviceLostError

if TYPE_CHECKING:  # they take long to import: a server listens meanwhile
    from bitnet_core.engine.engine import Engine
    from bitnet_core.engine.schedule.results import RequestOutput

log = logging.getLogger(__name__)

T = TypeVar("T")


class HasEngine(Protocol):
    """An object with an engine, such as Model."""

    @property
    def engine(self) -> Engine: ...

    def close(self) -> None: ...


M = TypeVar("M", bound=HasEngine)


class EngineThread(Generic[M]):
    """Everything that touches the model happens in one thread, between two steps: drivers of devices ask for that.

    load: opens the model there. deliver: is given the updates of each step, in that thread; it must not raise.
    model: None until it is loaded. error: what ended the loading or the device, with which nothing can be generated.
    stepping_since: time.monotonic() at the start of the step or command under way, None between them.
    """

    def __init__(self, load: Callable[[], M], deliver: Callable[[list[RequestOutput]], None]) -> None:
        self.model: M | None = None
        self.error: Exception | None = None
        self.stepping_since: float | None = None
        self._load, self._deliver = load, deliver
        self._commands: deque[tuple[Callable[[M], Any], Future[Any]]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Begin loading."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def call(self, action: Callable[[M], T]) -> Future[T]:
        """Have action(model) done before the next step, once the model is loaded; the future has what it returns or
        raises. BitnetError if the engine thread is closed or never loaded the model."""
        future: Future[T] = Future()
        with self._changed:
            if self._closing or (self.model is None and self.error is not None):
                raise BitnetError("the model is closed")
            self._commands.append((action, future))
            self._changed.notify()
        return future

    def close(self, timeout: float | None = None) -> None:
        """End what is under way, close the model and wait for the thread; may be called twice."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        try:
            self.model = self._load()
        except Exception as exc:
            self.error = exc
            log.debug("loading failed", exc_info=exc)
        else:
            busy = False
            while self._wait(busy):
                busy = self._turn(self.model)
            self._deliver(self.model.engine.fail_all(BitnetError("the model is closed")))
            self.model.close()
        self._refuse_commands()

    def _wait(self, busy: bool) -> bool:
        """Until there is something to do; False if that is to end."""
        with self._changed:
            self._changed.wait_for(lambda: busy or self._commands or self._closing)
            return not self._closing

    def _turn(self, model: M) -> bool:
        """The commands that came, and a step; False if nothing is left to do."""
        self.stepping_since = time.monotonic()
        while self._commands:
            action, future = self._commands.popleft()
            if future.set_running_or_notify_cancel():
                _carry_out(action, model, future)
        try:
            outputs = model.engine.step()
        except Exception as exc:
            log.debug("a step failed", exc_info=exc)
            outputs = model.engine.fail_all(exc)
            if isinstance(exc, DeviceLostError):
                self.error = exc
        self.stepping_since = None
        if outputs:
            self._deliver(outputs)
        return bool(outputs)

    def _refuse_commands(self) -> None:
        with self._changed:
            self._closing = True
            while self._commands:
                _, future = self._commands.popleft()
                if future.set_running_or_notify_cancel():
                    future.set_exception(self.error or BitnetError("the model is closed"))


def _carry_out(action: Callable[[M], T], model: M, future: Future[T]) -> None:
    try:
        future.set_result(action(model))
    except Exception as exc:  # noqa: BLE001 - it belongs to whoever asked
        future.set_exception(exc)
