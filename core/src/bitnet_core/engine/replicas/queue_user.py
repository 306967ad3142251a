"""Another process that submits requests to the queue of a ReplicaSet."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from bitnet_hal.errors import UsageError

from bitnet_core.engine.replicas.messages import Channel, Output, Progress, Snapshot, sendable
from bitnet_core.engine.replicas.shared_queue import SharedQueue
from bitnet_core.engine.request.prompt_scores import PromptScores

if TYPE_CHECKING:
    from bitnet_core.engine.replicas.replica_set import ReplicaSet
    from bitnet_core.engine.request.request import Request
    from bitnet_core.engine.schedule.results import RequestOutput
    from bitnet_core.engine.serving import ServingEngine


class QueueUser:
    """Another process that submits requests, with the messages of worker_process.EngineHost."""

    def __init__(self, shared: SharedQueue, replicas: ReplicaSet[Any], channel: Channel) -> None:
        self._shared, self._replicas, self._channel = shared, replicas, channel
        self._requests: dict[int, Request] = {}  # by their numbers in that process
        self._numbers: dict[int, int] = {}  # a request's number here -> in that process
        self._begun: set[int] = set()

    def carry_out(self, kind: str, number: int | None, *arguments: Any) -> None:
        """Run a command of the process, and answer with its result or error."""
        try:
            if kind == "add":
                self._add(*arguments)
                return
            if kind == "finish":
                self._finish(*arguments)
                return
            result = self._result(kind)
        except Exception as exc:  # noqa: BLE001 - reported to the process
            self._channel.send(("refused", number, sendable(exc)))
        else:
            if number is not None:
                self._channel.send(("answer", number, result))

    def close(self) -> None:
        """End the requests of a process that has ended."""
        for number in list(self._requests):
            self._finish(number)

    def _result(self, kind: str) -> object:
        if kind == "open":
            return self._model.device.info, math.inf  # no time limit: this process watches the devices
        if kind == "load":
            model, engine = self._model, self._model.engine
            figures, kind = self._replicas.figures(), engine.speculation.kind
            return figures, self._snapshot(), model.summary, engine.memory_plan(), kind
        if kind in ("close", "pace"):
            return None
        raise UsageError("a shared queue accepts generation requests only")

    @property
    def _model(self) -> Any:
        model = self._replicas.model
        if model is None:
            raise UsageError("the model is not loaded")
        return model

    def _snapshot(self) -> Snapshot:
        lengths = [engine.max_model_len for engine in self._replicas.engines]
        longest = max(lengths, default=self._model.engine.max_model_len)
        layers = self._model.engine.layers_by_device
        return Snapshot({"cache_blocks": 0}, {}, Counter(), self._replicas.slots, longest, layers)

    def _add(self, requests: Sequence[Request]) -> None:
        for request in requests:
            number = request.id
            request.renumber()
            if request.scored is not None and not isinstance(request.scored, PromptScores):
                request.scored = partial(self._scored, number)
            self._requests[number] = request
            self._numbers[request.id] = number
            self._shared.users[request.id] = self
        self._replicas.submit(requests)

    def _finish(self, number: int) -> None:
        request = self._requests.get(number)
        if request is not None:
            self._forget(request)
            self._replicas.cancel([request])

    def _scored(self, number: int, position: int, logits: npt.NDArray[np.float32]) -> None:
        self._channel.send(("scored", number, position, logits))

    def deliver(self, engine: ServingEngine, outputs: Sequence[RequestOutput]) -> None:
        """Send the outputs of a step."""
        with suppress(OSError, ValueError):  # the process has ended, which its reader will detect
            sent = [self._output(request, tokens) for request, tokens in outputs]
            figures = self._replicas.figures()
            self._channel.send(("outputs", sent, figures, engine.scheduler.seconds, self._snapshot()))

    def _output(self, request: Request, tokens: tuple[int, ...]) -> Output:
        number, sampler = self._numbers[request.id], request.sampler
        ended = request.finish_reason is not None
        progress = None
        if ended or (number not in self._begun and request.admitted is not None):
            progress = Progress.of(request)
            self._begun.add(number)
        if ended:
            self._send_prompt_scores(number, request)
            self._forget(request)
        scores = tuple(sampler.scores)
        sampler.scores.clear()
        return number, tokens, sampler.drawn, scores, progress

    def _send_prompt_scores(self, number: int, request: Request) -> None:
        if isinstance(request.scored, PromptScores):
            for position, score in request.scored.scores.items():
                self._channel.send(("scored", number, position - 1, score))

    def _forget(self, request: Request) -> None:
        number = self._numbers.pop(request.id, None)
        self._shared.users.pop(request.id, None)
        if number is not None:
            self._requests.pop(number, None)
            self._begun.discard(number)
