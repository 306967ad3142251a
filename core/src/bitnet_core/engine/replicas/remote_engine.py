"""An engine in the process of its device, with the interface that serves requests."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, Unpack

import numpy as np
import numpy.typing as npt
from bitnet_hal.discovery.selection import BackendStartupSummary
from bitnet_hal.kernels.catalogue import KV_BLOCK

from bitnet_core.engine.counters import GAUGES
from bitnet_core.engine.replicas.device_process import DeviceProcess
from bitnet_core.engine.replicas.messages import Output, Snapshot, outgoing
from bitnet_core.engine.replicas.remote_totals import RemoteTotals
from bitnet_core.engine.replicas.sent_prefixes import SentPrefixes
from bitnet_core.engine.request.new_request import RequestOptions, check_length, new_request
from bitnet_core.engine.request.prompt_scores import PromptScores
from bitnet_core.engine.request.request import FinishReason, Request
from bitnet_core.engine.schedule.results import RequestOutput
from bitnet_core.model.source import ModelSource
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.sampling import SamplingParams
from bitnet_core.plan.memory import DeviceMemoryPlan

if TYPE_CHECKING:
    from bitnet_core.engine.engine import Engine

T = TypeVar("T")


class ModelOpener(Protocol):
    """A picklable function that opens the model in the process of a device (worker_process.OpenModel)."""

    @property
    def options(self) -> EngineOptions: ...

    def alone(self) -> Self:
        """Return the opener of the same model without its draft model."""


def _embed(engine: Engine, texts: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
    return engine.embed(texts)


class RemoteSpeculation:
    """The kind of speculation that the engine uses."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


_Opened = tuple[dict[str, int | float], Snapshot, BackendStartupSummary, DeviceMemoryPlan, str]
"""The answer of a process that has opened a model: figures, snapshot, summary, plan, and kind of speculation."""


class RemoteEngine:
    """The engine of a device in another process, with the methods of Engine that serve requests.

    The process schedules, samples and waits for the device; this object keeps the requests with their tokens, so that
    another engine can continue them. opener: opens the model there. lost: called when the process ends. waiting_since:
    time.monotonic() of the last message while there are requests, else None.
    """

    def __init__(self, source: ModelSource, device: DeviceProcess, opener: ModelOpener) -> None:
        self.source = source
        self.options = opener.options
        self.config = self.options.config_of(source.config)
        self.scheduler = RemoteTotals()
        self.lost: Callable[[], None] = lambda: None
        self.lock = threading.RLock()
        self.waiting_since: float | None = None
        self.opener = opener
        self._changed = threading.Condition()
        self._inbox: deque[tuple[Any, ...]] = deque()
        self._interrupted = False
        self._requests: dict[int, Request] = {}
        self._unsent: dict[int, Request] = {}
        self._aborted: deque[Request] = deque()
        self._use(device)

    def _use(self, device: DeviceProcess) -> None:
        """Open the model on a device; closes the device if that fails."""
        self.device = device
        self.scheduler.begin()
        try:
            self._figures, self._snapshot, self.summary, self._plan, kind = self._opened(device)
        except BaseException:
            device.close()
            raise
        self.speculation = RemoteSpeculation(kind)
        self._sent_prefixes = SentPrefixes(int(self._snapshot.memory["cache_blocks"]))
        device.receive = lambda message: self._receive(device, message)
        if device.ended is not None:
            raise device.ended

    def _opened(self, device: DeviceProcess) -> _Opened:
        opened: _Opened = device.call("load", self.opener)
        return opened

    @property
    def sequences(self) -> int:
        """Largest number of concurrent requests."""
        return self._snapshot.sequences

    @property
    def max_model_len(self) -> int:
        """Largest number of tokens of one request, prompt included."""
        return self._snapshot.max_model_len

    @property
    def layers_by_device(self) -> dict[str, int]:
        """See Engine.layers_by_device."""
        return self._snapshot.layers

    @property
    def kernel_launches_by_device(self) -> dict[str, Counter[str]]:
        """See Engine.kernel_launches_by_device."""
        return self.scheduler.launches

    def memory_plan(self) -> DeviceMemoryPlan:
        """Return the memory that the engine needed on its device when it was opened."""
        return self._plan

    def memory(self) -> dict[str, int | float]:
        """See Engine.memory; {} without a device."""
        return self._snapshot.memory

    def figures(self) -> dict[str, int | float]:
        """See Engine.figures."""
        return {**self._figures, **self.scheduler.counts}

    def beside(self, device: DeviceProcess) -> RemoteEngine:
        """Return an engine with the same model in another process, without a draft model."""
        return RemoteEngine(self.source, device, self.opener.alone())

    def apply(self, function: Callable[..., T], *arguments: object) -> T:
        """Run function(engine, *arguments) in the process between two steps, and return its result. Function, arguments
        and result must be picklable."""
        result: T = self.device.call("apply", function, *arguments)
        return result

    def embed(self, texts: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """See Engine.embed."""
        return self.apply(_embed, texts)

    def set_pace(self, seconds: float) -> None:
        """See Engine.set_pace."""
        self.device.tell("pace", seconds)

    # Requests.

    def new_request(
        self, tokens: Iterable[int], sampling: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> Request:
        """See Engine.new_request."""
        return new_request(self.config, self.max_model_len, tokens, sampling, **options)

    def add_request(
        self, tokens: Iterable[int], sampling: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> Request:
        """See Engine.add_request."""
        request = self.new_request(tokens, sampling, **options)
        self.queue_request(request)
        return request

    def queue_request(self, request: Request) -> None:
        """See Engine.queue_request; the next step sends it."""
        check_length(request.tokens, self.max_model_len)
        with self._changed:
            self._requests[request.id] = request
            self._unsent[request.id] = request
            self.waiting_since = self.waiting_since or time.monotonic()

    def cached_prefix(self, request: Request) -> int:
        """Return an estimate of how many tokens of a request are in the prefix cache, from the requests that were sent
        before."""
        return 0 if request.scored is not None else KV_BLOCK * self._sent_prefixes.count(request)

    def finish_request(self, request: Request, reason: FinishReason = "cancelled") -> None:
        """See Engine.finish_request."""
        request.finish_reason = request.finish_reason or reason
        unsent = self._unsent.pop(request.id, None) is not None
        if self._forget(request) and not unsent:
            self.device.tell("finish", request.id)

    def abort_request(self, request: Request) -> None:
        """See Engine.abort_request."""
        self._aborted.append(request)

    def fail_request(self, request: Request, error: Exception) -> RequestOutput:
        """See Engine.fail_request."""
        self.scheduler.errors.add(error)
        request.error = error
        self.finish_request(request, "error")
        return RequestOutput(request, ())

    def fail_all(self, error: Exception) -> list[RequestOutput]:
        """See Engine.fail_all."""
        return [self.fail_request(request, error) for request in list(self._requests.values())]

    def step(self) -> list[RequestOutput]:
        """Wait for the outputs of the next step; returns [] if there are no requests, or after `interrupt`.

        Raises the error of a step that failed, and DeviceLostError if the process has ended.
        """
        while self._aborted:
            self.finish_request(self._aborted.popleft())
        self._send()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._inbox or self._interrupted or not self._requests)
                self._interrupted = False
                if not self._inbox:
                    return []
                message = self._inbox.popleft()
            if outputs := self._take(*message):
                return outputs

    def _send(self) -> None:
        """Send all new requests in one message, so that their prompts can share steps."""
        if not self._unsent:
            return
        requests = list(self._unsent.values())
        self._unsent.clear()
        for request in requests:
            self._sent_prefixes.add(request)
        self.device.tell("add", list(map(outgoing, requests)))

    def interrupt(self) -> None:
        """Make `step` return early; any thread may call it."""
        with self._changed:
            self._interrupted = True
            self._changed.notify()

    # The device.

    def leave(self) -> None:
        """End the process and drop every request, so that other engines can queue them. Until `resume`, steps do
        nothing."""
        device = self.device
        device.receive = lambda message: None
        device.kill()
        with self._changed:
            for request in self._requests.values():
                request.req_index = -1
            self._requests.clear()
            self._unsent.clear()
            self._inbox.clear()
            self.waiting_since = None
        self._figures = dict.fromkeys(GAUGES, 0)
        self._snapshot = self._snapshot._replace(memory={})

    def resume(self, device: DeviceProcess) -> None:
        """Continue in another process; ends the current one, if any. Raises the error of loading the model there."""
        self.leave()
        self._use(device)

    def close(self) -> None:
        """End the process; may be called twice."""
        self.device.close()

    # Called in the thread that receives the device's messages.

    def _receive(self, device: DeviceProcess, message: tuple[Any, ...] | None) -> None:
        if message is not None and message[0] == "figures":
            self._figures = message[1]
            return
        with self._changed:
            if device is not self.device:
                return
            if message is not None:
                self._inbox.append(message)
            elif device.ended is not None:
                self._inbox.append(("failed", device.ended, self.scheduler.lost(device.ended)))
            self.waiting_since = time.monotonic() if self._requests else None
            self._changed.notify()
        if message is None:
            self.lost()

    # Called in the thread of `step`.

    def _take(self, kind: str, *rest: Any) -> list[RequestOutput]:
        if kind == "failed":
            error, counts = rest
            self.scheduler.update_errors(counts)
            raise error
        if kind == "scored":
            return self._score(*rest)
        if kind == "moved":
            (self.summary,) = rest
            self.device.moved(self.summary.selected)
            return []
        outputs, self._figures, seconds, snapshot = rest
        self.scheduler.update(self._figures, seconds)
        if snapshot is not None:
            self._show(snapshot)
        return [made for output in outputs if (made := self._apply(output)) is not None]

    def _apply(self, output: Output) -> RequestOutput | None:
        number, tokens, drawn, scores, progress = output
        request = self._requests.get(number)
        if request is None:  # this process has ended it
            return None
        request.tokens += tokens
        request.sampler.go_on(drawn, scores)
        if progress is not None:
            progress.apply(request)
            request.req_index = 0
            if request.finish_reason is not None:
                self._forget(request)
        return RequestOutput(request, tokens)

    def _score(self, number: int, position: int, made: Any) -> list[RequestOutput]:
        """Pass the logits after a position, or the score of the next token, to the request."""
        request = self._requests.get(number)
        if request is None or request.scored is None or made is None:
            return []
        try:
            if isinstance(request.scored, PromptScores):
                request.scored.scores[position + 1] = made
            else:
                request.scored(position, made)
        except Exception as exc:  # noqa: BLE001 - the error of one request must not end the others
            return [self.fail_request(request, exc)]
        return []

    def _show(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.scheduler.update_errors(snapshot.errors)
        names = {self.device.own_request: self.device.info.request}
        self.scheduler.update_launches({names.get(one, one): counts for one, counts in snapshot.launches.items()})

    def _forget(self, request: Request) -> bool:
        """Drop a request; returns True if it was sent to the process."""
        with self._changed:
            found = self._requests.pop(request.id, None) is not None
            if not self._requests:
                self.waiting_since = None
            self._changed.notify()
        return found
