"""A thread that owns a model: it opens the model, runs steps of its engine while there is work, and closes it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from bitnet_hal.errors import BitnetError, DeviceLostError

if TYPE_CHECKING:  # slow imports: a server should listen before them
    from bitnet_core.engine.schedule.results import RequestOutput
    from bitnet_core.engine.serving import ServingEngine

log = logging.getLogger(__name__)

T = TypeVar("T")

_QUIET = 0.25
"""Seconds without work before `idle` is called, as requests that follow closely would have to wait for it."""


class HasEngine(Protocol):
    """An object with an engine, such as Model."""

    @property
    def engine(self) -> ServingEngine: ...

    def close(self) -> None: ...


M = TypeVar("M", bound=HasEngine)


class EngineThread(Generic[M]):
    """The only thread that uses a model, as device drivers require. Commands run between steps.

    load: opens the model. deliver: called with the outputs of each step; it must not raise. failed: called with the
    error of a step; returns True if it has moved the requests elsewhere, else they end with the error. All are called
    in the thread.

    model: None until it is loaded. error: the exception that ended loading or lost the device, after which nothing can
    be generated. stepping_since: time.monotonic() at the start of the current step or command, None between them.
    interrupt: called after a command was queued, because a step may be waiting for another process. idle: called
    repeatedly in idle times until it returns False.
    """

    def __init__(
        self,
        load: Callable[[], M],
        deliver: Callable[[list[RequestOutput]], None],
        failed: Callable[[Exception], bool] = lambda error: False,
    ) -> None:
        self.model: M | None = None
        self.error: Exception | None = None
        self.stepping_since: float | None = None
        self.interrupt: Callable[[], None] | None = None
        self.idle: Callable[[], bool] | None = None
        self._load = load
        self._deliver = deliver
        self._failed = failed
        self._commands: deque[tuple[Callable[[M], Any], Future[Any]]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._running = False
        self._worked = 0.0  # time.monotonic() of the last work
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread, and load the model in it."""
        self._running = True
        self._thread.start()

    @property
    def alive(self) -> bool:
        """True while the thread runs."""
        return self._running

    def call(self, action: Callable[[M], T]) -> Future[T]:
        """Queue action(model) to run before the next step, once the model is loaded. The future receives its result or
        exception. Raises BitnetError if the thread is closed or failed to load the model."""
        future: Future[T] = Future()
        with self._changed:
            if self._closing or (self.model is None and self.error is not None):
                raise BitnetError("the model is closed")
            self._commands.append((action, future))
            self._wake()
        return future

    def close(self, timeout: float | None = None) -> None:
        """End all requests, close the model and wait for the thread; may be called twice."""
        with self._changed:
            self._closing = True
            self._wake()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _wake(self) -> None:
        self._changed.notify()
        if self.interrupt is not None:
            self.interrupt()

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            self._running = False

    def _serve(self) -> None:
        try:
            self.model = self._load()
        except Exception as exc:
            self.error = exc
            log.debug("loading failed", exc_info=exc)
        else:
            busy = self.idle is not None
            while self._wait(busy):
                busy = self._turn(self.model) or self._idled()
            self._deliver(self.model.engine.fail_all(BitnetError("the model is closed")))
            self.model.close()
        self._refuse_commands()

    def _idled(self) -> bool:
        """Call `idle` once, or wait until it is due; returns False if there is nothing to call."""
        quiet = time.monotonic() - self._worked
        if self.idle is not None and quiet < _QUIET:
            with self._changed:
                self._changed.wait_for(lambda: self._commands or self._closing, _QUIET - quiet)
        elif self.idle is not None and not self.idle():
            self.idle = None
        return self.idle is not None

    def _wait(self, busy: bool) -> bool:
        """Wait for work; returns False when the thread must end."""
        with self._changed:
            self._changed.wait_for(lambda: busy or self._commands or self._closing)
            return not self._closing

    def _turn(self, model: M) -> bool:
        """Run the queued commands and one step; returns False if there was nothing to do."""
        self.stepping_since = time.monotonic()
        with self._changed:
            commands = list(self._commands)
            self._commands.clear()
        for action, future in commands:
            if future.set_running_or_notify_cancel():
                _carry_out(action, model, future)
        try:
            outputs = model.engine.step()
        except Exception as exc:
            log.debug("a step failed", exc_info=exc)
            if self._failed(exc):
                self.stepping_since = None
                return False
            outputs = model.engine.fail_all(exc)
            if isinstance(exc, DeviceLostError):
                self.error = exc
        self.stepping_since = None
        if outputs:
            self._deliver(outputs)
        worked = bool(outputs or commands)  # a step that a command interrupts has no outputs
        self._worked = time.monotonic() if worked else self._worked
        return worked

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
    except Exception as exc:  # noqa: BLE001 - passed on to the caller of `call`
        future.set_exception(exc)
