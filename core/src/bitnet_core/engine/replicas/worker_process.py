"""The process of a device: it opens device and model, runs the engine, and answers a server over two pipes.

It ends when the pipe of its commands closes, so it never outlives the server.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import Device
from bitnet_hal.discovery.selection import BackendStartupSummary
from bitnet_hal.errors import BitnetError

from bitnet_core.engine.engine import Engine
from bitnet_core.engine.replicas.messages import Channel, Output, Progress, Snapshot, forward_logs, sendable
from bitnet_core.engine.replicas.own_pipes import own_pipes
from bitnet_core.engine.replicas.warmup import warm_up
from bitnet_core.engine.request.prompt_scores import PromptScores
from bitnet_core.engine.request.request import Request
from bitnet_core.engine.sampling.constraint import Constraint
from bitnet_core.engine.schedule.results import RequestOutput
from bitnet_core.engine.thread import EngineThread
from bitnet_core.options.sampling import SamplingParams
from bitnet_core.progress import Progress as LoadProgress

_SNAPSHOT_SECONDS = 0.1
"""Pause between two snapshots of the figures while the engine works."""

_TURN = 0.0005
"""The interpreter's switch interval in seconds: how long a thread that compiles a grammar may delay a step."""

_WARM_UP_SECONDS = 2.0
"""Maximum seconds of warm-up before the first requests; the rest is done when the engine is idle."""

TIMEOUT_SECONDS = 5.0
"""Seconds between two messages with the time that the current step may take."""


class OpenedModel(Protocol):
    """A model with an engine in this process. summary: names the device in use, which changes if one is lost. sampling:
    usual parameters of requests. constraint: compiles the constraint of a request for this process."""

    @property
    def engine(self) -> Engine: ...

    @property
    def summary(self) -> BackendStartupSummary: ...

    @property
    def sampling(self) -> Sequence[SamplingParams]: ...

    def constraint(self, given: Constraint) -> Constraint: ...

    def close(self) -> None: ...


OpenDevice = Callable[[], tuple[Device, BackendStartupSummary]]
OpenModel = Callable[[Device, BackendStartupSummary, LoadProgress], OpenedModel]


class EngineHost:
    """The commands of a server, which the engine's thread runs: the methods without an underscore.

    It sends tuples: ("answer", number of the command, result), ("refused", number, error), ("outputs", list of Output,
    figures, seconds, Snapshot or None), ("failed", error of a step, error counts), ("scored", request, position,
    logits, TokenScore or None), ("figures", figures), ("moved", summary), ("progress", stage, done, total), ("timeout",
    seconds), or ("log", logger, level, text).
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._models: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        self._requests: dict[int, Request] = {}
        self._begun: set[int] = set()
        self._compiler = ThreadPoolExecutor(1, "compiler")
        self._compiled: set[int] = set()  # requests whose grammar is being compiled
        self._cancelled: set[int] = set()  # requests among `_compiled` that the server has ended
        self._told = 0.0
        self._summary: BackendStartupSummary | None = None
        self._thread: EngineThread[OpenedModel] | None = None

    def serve(self) -> None:
        """Run commands until the server closes its pipe."""
        while (message := self._channel.receive()) is not None:
            kind, number, *arguments = message
            if kind == "open":
                load = partial(self._load, number, *arguments)
                self._thread = EngineThread(load, self._deliver, self._failed)
                self._thread.start()
            elif kind in ("free", "load"):
                self._models.put(message)
            elif kind == "close":
                self._close(number)
                return
            elif kind == "add":
                self._receive(*arguments)
            elif self._thread is not None:
                self._thread.call(partial(self._carry_out, number, getattr(self, kind), *arguments))

    def _receive(self, requests: Sequence[Request]) -> None:
        """Queue requests. A grammar is compiled first, in another thread, so that no step waits for it."""
        thread = self._thread
        assert thread is not None
        plain = [request for request in requests if request.constraint is None]
        if plain:
            thread.call(partial(self._carry_out, None, self.add, plain))
        for request in requests:
            if request.constraint is not None:
                self._compiled.add(request.id)
                self._compiler.submit(self._compile, thread, request)

    def _compile(self, thread: EngineThread[OpenedModel], request: Request) -> None:
        """Compile the constraint of a request, and queue the request."""
        try:
            assert thread.model is not None
            assert request.constraint is not None
            request.constraint = thread.model.constraint(request.constraint)
            for token in request.generated:
                request.constraint.accept(token)
        except Exception as exc:  # noqa: BLE001 - it ends this request only
            request.error = exc
        with suppress(BitnetError):  # the thread has ended
            thread.call(partial(self._carry_out, None, self.add, [request]))

    def add(self, model: OpenedModel, requests: Sequence[Request]) -> None:
        """Queue requests, some of whose tokens may have been generated by another process."""
        for request in requests:
            self._compiled.discard(request.id)
            if request.id in self._cancelled:
                self._cancelled.remove(request.id)
            else:
                self._add(model, request)

    def _add(self, model: OpenedModel, request: Request) -> None:
        self._requests[request.id] = request
        try:
            if request.error is not None:
                raise request.error
            if request.scored is not None:
                scores = request.scored if isinstance(request.scored, PromptScores) else None
                request.scored = partial(self._scored, request.id, scores)
            model.engine.queue_request(request)
        except Exception as exc:  # noqa: BLE001 - it ends this request only
            self._deliver([model.engine.fail_request(request, exc)])

    def finish(self, model: OpenedModel, number: int) -> None:
        """End a request that the server has ended."""
        request = self._requests.pop(number, None)
        self._begun.discard(number)
        if request is not None:
            model.engine.finish_request(request)
            self._channel.send(("figures", model.engine.figures()))
        elif number in self._compiled:
            self._cancelled.add(number)

    def apply(self, model: OpenedModel, function: Callable[..., object], *arguments: object) -> object:
        """Return function(engine, *arguments)."""
        return function(model.engine, *arguments)

    def pace(self, model: OpenedModel, seconds: float) -> None:
        """See Engine.set_pace."""
        model.engine.set_pace(seconds)

    def _carry_out(self, number: int | None, action: Callable[..., Any], *rest: Any) -> None:
        *arguments, model = rest
        try:
            result = action(model, *arguments)
        except Exception as exc:  # noqa: BLE001 - reported to the server
            self._channel.send(("refused", number, sendable(exc)))
        else:
            if number is not None:
                self._channel.send(("answer", number, result))

    def _tell_timeout(self, device: Device) -> None:
        """Send, periodically, how long a wait in the current step may take: that depends on the queued work."""
        while True:
            time.sleep(TIMEOUT_SECONDS)
            self._channel.send(("timeout", getattr(device, "timeout", 0.0)))

    def _load(self, number: int, open_device: OpenDevice, levels: Mapping[str, int]) -> OpenedModel:
        """Open the device, and then the model, in the thread that uses them."""
        forward_logs(self._channel.send, levels)
        try:
            device, summary = open_device()
            self._channel.send(("answer", number, (device.info, getattr(device, "timeout", 0.0))))
            kind, number, *arguments = self._models.get()
            while kind == "free":
                self._channel.send(("answer", number, device.free_memory()))
                kind, number, *arguments = self._models.get()
            if kind == "close":
                device.close()
                raise BitnetError("the device is closed")
            Thread(target=self._tell_timeout, args=(device,), name="timeout", daemon=True).start()
            model: OpenedModel = arguments[0](device, summary, self._progress)
            engine = model.engine
            self._warm_up(model)
            self._summary = model.summary
            snapshot, plan = Snapshot.of(engine), engine.memory_plan()
            loaded = (engine.figures(), snapshot, model.summary, plan, engine.speculation.kind)
            gc.freeze()  # a collection of all these objects would stop a step for tens of milliseconds
            gc.enable()
            self._channel.send(("answer", number, loaded))
        except BaseException as exc:
            self._channel.send(("refused", number, sendable(exc)))
            raise
        return model

    def _warm_up(self, model: OpenedModel) -> None:
        """Warm the engine up for a limited time, and leave the rest for idle times."""
        bursts = warm_up(model.engine, model.sampling, self._progress)
        end = time.monotonic() + _WARM_UP_SECONDS
        for _ in bursts:
            if time.monotonic() > end and self._thread is not None:
                self._thread.idle = lambda: next(bursts, bursts) is not bursts
                return

    def _progress(self, stage: str, done: int, total: int) -> None:
        self._channel.send(("progress", stage, done, total))

    def _close(self, number: int) -> None:
        self._models.put(("close", None))  # closes a device that no model was loaded onto
        if self._thread is not None:
            self._thread.close()
        self._channel.send(("answer", number, None))

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        """Send the outputs of a step in one message."""
        thread = self._thread
        if thread is None or thread.model is None:
            return
        engine, summary = thread.model.engine, thread.model.summary
        if summary is not self._summary:
            self._summary, self._told = summary, 0.0
            self._channel.send(("moved", summary))
        sent = [self._output(request, tokens) for request, tokens in outputs if request.id in self._requests]
        scheduler = engine.scheduler
        now = time.monotonic()
        snapshot = None
        if now - self._told > _SNAPSHOT_SECONDS or not (scheduler.running or scheduler.waiting):
            self._told = now
            snapshot = Snapshot.of(engine)
        self._channel.send(("outputs", sent, engine.figures(), scheduler.seconds, snapshot))

    def _output(self, request: Request, tokens: tuple[int, ...]) -> Output:
        number, sampler = request.id, request.sampler
        ended = request.finish_reason is not None
        progress = None
        if ended or (number not in self._begun and request.admitted is not None):
            progress = Progress.of(request)
            self._begun.add(number)
        if ended:
            del self._requests[number]
            self._begun.discard(number)
        scores: tuple[Any, ...] = ()
        if sampler.scores:
            scores = tuple(sampler.scores)
            sampler.scores.clear()
        return number, tokens, sampler.drawn, scores, progress

    def _scored(self, number: int, scores: PromptScores | None, position: int, logits: npt.NDArray[np.float32]) -> None:
        self._channel.send(("scored", number, position, logits if scores is None else scores.score(position, logits)))

    def _failed(self, error: Exception) -> bool:
        """Report the error of a step; the server decides what happens to the requests."""
        thread = self._thread
        counts = Counter() if thread is None or thread.model is None else thread.model.engine.scheduler.errors.counts
        self._channel.send(("failed", sendable(error), counts))
        return True


def main() -> None:
    """Run in the spawned interpreter: take commands from stdin and send answers to stdout."""
    pipes = own_pipes()
    sys.setswitchinterval(_TURN)
    gc.disable()  # until the model is loaded
    try:
        EngineHost(Channel(*pipes)).serve()
    except (OSError, BitnetError):  # the server has ended
        pass
    finally:
        os._exit(0)  # a driver that hangs must not delay the end
