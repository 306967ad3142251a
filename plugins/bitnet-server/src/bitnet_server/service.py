"""A model while it is loaded: its engines, queue and running requests."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from bitnet_core.engine.replicas.replica_set import ReplicaSet
from bitnet_core.engine.replicas.shared_queue import SharedQueue
from bitnet_core.version import core_version
from bitnet_hal.errors import BitnetError, DeviceLostError

from bitnet_server.engine_figures import ModelFigures
from bitnet_server.errors import ApiError, from_engine, queue_full, unavailable
from bitnet_server.metrics import ModelMetrics
from bitnet_server.protocols.kept_responses import KeptResponses
from bitnet_server.request_state import Delta, GenerationRequest, OutputQueue, RequestState, now
from bitnet_server.settings import Settings
from bitnet_server.shared_counts import SharedCounts

if TYPE_CHECKING:  # it takes long to import: the server listens meanwhile
    from bitnet_core.api import Model
    from bitnet_core.engine.schedule.results import RequestOutput
    from bitnet_core.engine.serving import ServingEngine

log = logging.getLogger(__name__)

T = TypeVar("T")

_HANGING = 60.0
"""Seconds of one step after which the engine counts as hanging."""

_GATHERED = 0.002
"""Seconds for which the requests of a burst are gathered: each time that the engine's thread takes some, the event loop
waits for it."""

_REMEMBERED = 64
"""Texts whose times say how long the next ones will take."""


class Service:
    """A model on the event loop; the replicas' threads own it.

    load: opens the model, in the first of them. names: of the model for clients; without any, its own. counts: those
    of the HTTP processes that serve the model. shared: takes the requests of the others. retire: ends the others, after
    their requests.
    """

    def __init__(
        self,
        load: Callable[[], Model],
        settings: Settings,
        names: tuple[str, ...],
        metrics: ModelMetrics,
        kept_responses: KeptResponses,
        counts: SharedCounts | None = None,
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self.kept_responses = kept_responses
        self.draining = False  # no new work
        self.leaving = False  # load balancers send requests elsewhere
        self.counts = counts or SharedCounts()
        self.shared = SharedQueue(self._deliver)
        self.retire: Callable[[], Awaitable[None]] | None = None
        self._names = names
        self._load = load
        self.replicas: ReplicaSet[Model] = ReplicaSet(self._open, self.shared.deliver)
        self._states: dict[int, RequestState] = {}  # by request id, until a replica's thread ends them
        self._unsent: list[RequestState] = []
        self._sent = 0.0  # when requests were given to the engines last
        self._times: deque[float] = deque(maxlen=_REMEMBERED)
        self._loop: asyncio.AbstractEventLoop | None = None

    # The life of the model.

    def start(self) -> None:
        """Begin loading; call it on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self.replicas.start()

    async def loaded(self) -> None:
        """Wait until the model is loaded. Raises the error that ended the loading."""
        try:
            await asyncio.wrap_future(self.replicas.call(lambda model: None))
        except BitnetError as exc:
            raise self.error or exc from None
        if self.loading and self.error is not None:
            raise self.error

    def close(self) -> None:
        """Close the model; running requests end with an error."""
        self.replicas.close(_HANGING)
        self.counts.close()

    @property
    def error(self) -> Exception | None:
        """The error that ended the loading or the device, None without one."""
        return self.replicas.error

    @property
    def lost(self) -> bool:
        """True if the device is lost and there is no other."""
        return isinstance(self.replicas.error, DeviceLostError)

    @property
    def loading(self) -> bool:
        """True while the model is being loaded."""
        return self.replicas.model is None

    @property
    def model(self) -> Model:
        """The model. Raises ApiError 503 while there is none."""
        model = self.replicas.model
        if model is None:
            raise unavailable("loading model", 1)
        return model

    @property
    def alive(self) -> bool:
        """True if an engine's thread runs and is not stuck in a step."""
        return self.replicas.alive

    @property
    def active(self) -> int:
        """Number of running and waiting requests, those of other HTTP processes included."""
        return self.counts.active

    @property
    def slots(self) -> int:
        """Maximum number of requests that run at once."""
        return self.replicas.slots

    @property
    def health(self) -> str:
        """The state of the engine and the server, for the chat page: ready, draining, or what is wrong."""
        if self.lost:
            return "device lost"
        if not self.alive:
            return "not responding"
        return "draining" if self.draining or self.leaving else "ready"

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The model's names; the first is its id."""
        return self._names or (self.model.name,)

    @cached_property
    def fingerprint(self) -> str:
        """The version and the device, as a fingerprint."""
        return f"bitnet-{core_version()}-{self.model.device.info.backend}"

    def _open(self) -> Model:
        model = self._load()
        model.tokenizer.prepare()
        name = self._names[0] if self._names else model.name
        self.metrics.loaded(name, core_version(), model.device.info.request, ModelFigures(self))
        return model

    # Texts.

    def check_accepting(self) -> None:
        """Raise ApiError unless new requests are accepted."""
        _ = self.model
        if self.draining:
            raise unavailable("the server is shutting down", 5, again=False)
        if self.lost:
            raise unavailable("the device is lost", 5, again=False)
        if not self.alive:
            raise unavailable("the engine does not answer", 30, again=False)

    def check_room(self, texts: int) -> None:
        """Raise ApiError 429 if the queue has no room for so many more requests, 400 if it never has."""
        room = self.slots + self.settings.max_queue
        if texts > room:
            text = f"the request asks for {texts} texts; at most {room} can run and wait here (--max-queue)"
            raise ApiError(400, text, param="n")
        if self.active + texts > room:
            raise queue_full(self._wait_seconds())

    def check_text(self, text: str) -> None:
        """Raise UsageError for a text that cannot fit in the context, without tokenizing it."""
        self.model.tokenizer.check_fits(text, self.model.engine.max_model_len)

    def on_engine(self, action: Callable[[Model], T]) -> T:
        """Run action(model) in the engine's thread, before its next step, and return the result; call it in a worker
        thread. Raises ApiError if the action fails."""
        try:
            return self.replicas.call(action).result()
        except Exception as exc:
            raise from_engine(exc) from exc

    async def submit(
        self, generations: Sequence[GenerationRequest], created: float
    ) -> tuple[OutputQueue, list[RequestState]]:
        """Queue generation requests. created: time of the HTTP request. Raises ApiError if one is not valid."""
        self.check_accepting()
        self.check_room(len(generations))
        model, queue = self.model, OutputQueue()
        try:
            states = [_state_of(model, generation, queue, created) for generation in generations]
            self._states.update((state.request.id, state) for state in states)
        except BitnetError as exc:
            raise from_engine(exc) from exc
        self.counts.add(active=len(generations), requests=1)
        self._unsent += states
        if now() - self._sent > _GATHERED:
            self._send()
        else:
            asyncio.get_running_loop().call_soon(self._send)
        return queue, states

    def _send(self) -> None:
        """Give the gathered requests to the engines."""
        if self._unsent:
            self.replicas.submit(state.request for state in self._unsent if not state.over)
            self._unsent.clear()
            self._sent = now()

    def cancel(self, states: Sequence[RequestState]) -> None:
        """Abort the requests of a client that has disconnected; finished ones are left alone."""
        left = [state for state in states if not state.over]
        for state in left:
            self._close(state)
            self.metrics.cancelled()
        if left:
            self.replicas.cancel(state.request for state in left)
            for state in left:
                self._states.pop(state.request.id, None)

    def end_all(self) -> None:
        """Fail all running requests, with an error for their clients."""
        error = unavailable("the server is shutting down", 5, again=False)
        self.replicas.fail_all(error)

    def _deliver(self, engine: ServingEngine, outputs: list[RequestOutput]) -> None:
        """Hand the output of a step from its engine's thread to the event loop, in one call."""
        batch: list[tuple[RequestState, Delta]] = []
        for output in outputs:
            state = self._states.get(output.request.id)
            delta = state.advance(engine) if state is not None else None
            if state is not None and delta is not None:
                batch.append((state, delta))
                if delta.finish is not None:
                    self._states.pop(output.request.id, None)
        if batch:
            self._call_soon(self._dispatch, batch)

    def _dispatch(self, batch: list[tuple[RequestState, Delta]]) -> None:
        time_now, tokens = now(), 0
        next_tokens = self.metrics.next_tokens
        for state, delta in batch:
            if state.over:
                continue
            tokens += delta.tokens
            if delta.tokens and not state.first:
                state.first = state.last = time_now
                self.metrics.first_token(time_now - state.created)
            elif delta.tokens:
                next_tokens(time_now - state.last, delta.tokens)
                state.last = time_now
            if delta.finish is not None:
                self._finished(state, delta.finish, time_now)
            state.queue.put(delta)
        self.counts.add(tokens=tokens)
        if tokens:
            self.metrics.stepped(tokens)

    def _finished(self, state: RequestState, reason: str, time_now: float) -> None:
        self._close(state)
        request = state.request
        self._times.append(time_now - (request.admitted or time_now))
        self.metrics.ended(
            reason,
            prompt=request.prompt_tokens,
            generated=request.generated_tokens,
            whole=time_now - state.created,
            queued=(request.admitted or time_now) - request.added,
            prefill=request.prefill_seconds,
            decode=request.decode_seconds,
        )

    def _close(self, state: RequestState) -> None:
        state.over = True
        self.counts.add(active=-1)

    def _wait_seconds(self) -> int:
        """Return an estimate of the seconds until the queue has room."""
        mean = sum(self._times) / len(self._times) if self._times else 1.0
        slots = max(1, self.slots)
        return min(60, max(1, math.ceil(max(0, self.active - slots) * mean / slots)))

    def _call_soon(self, action: Callable[..., object], *arguments: object) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(action, *arguments)


def _state_of(model: Model, generation: GenerationRequest, queue: OutputQueue, created: float) -> RequestState:
    """Make a request. Raises UsageError if it is not valid."""
    from bitnet_core.engine.output import OutputProcessor
    from bitnet_core.tokenizer import StreamDecoder

    request = model.engine.new_request(
        generation.tokens,
        generation.sampling,
        max_tokens=generation.max_tokens,
        stop_token_ids=generation.stop_token_ids,
        constraint=generation.constraint,
        scored=generation.scored,
    )
    output = OutputProcessor(request, StreamDecoder(model.tokenizer), generation.stops, generation.reasoning)
    return RequestState(generation.index, output, queue, created)
