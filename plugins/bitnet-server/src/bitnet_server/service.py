"""The model behind the endpoints: loading, the queue, texts under way, and the end of it all."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import TYPE_CHECKING

from bitnet_core.engine.driver import Driver
from bitnet_core.version import core_version
from bitnet_hal.errors import DeviceLostError

from bitnet_server.errors import ApiError, from_engine, unavailable
from bitnet_server.jobs import Delta, Inbox, Job, Order, now
from bitnet_server.metrics import Counts, Metrics
from bitnet_server.settings import Settings

if TYPE_CHECKING:  # it takes long to import: the server listens meanwhile
    from bitnet_core.api import Model
    from bitnet_core.engine.booking import Update

log = logging.getLogger(__name__)

_HANGING = 60.0
"""Seconds of one step after which the engine counts as hanging."""

_REMEMBERED = 64
"""Texts whose times say how long the next ones will take."""


class Service:
    """Everything but the endpoints, on the event loop; the driver's thread owns the model."""

    def __init__(self, load: Callable[[], Model], settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics(self._figures, self._counts)
        self.created = int(time.time())
        self.draining = False  # no new work
        self.leaving = False  # tell load balancers to go elsewhere
        self.active = 0  # texts under way, waiting ones included
        self.tokens_made = 0
        self.requests = 0
        self._load = load
        self._driver: Driver[Model] = Driver(self._open, self._deliver)
        self._jobs: dict[int, Job] = {}  # by sequence id; the engine's thread alone touches it
        self._times: deque[float] = deque(maxlen=_REMEMBERED)
        self._loop: asyncio.AbstractEventLoop | None = None

    # The life of the model.

    def start(self) -> None:
        """Begin loading, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._driver.start()

    def close(self) -> None:
        """Close the model; what is under way ends with an error."""
        self._driver.close(_HANGING)

    @property
    def error(self) -> Exception | None:
        """What ended the loading, or the device."""
        return self._driver.error

    @property
    def lost(self) -> bool:
        """The device is gone, and there is no other."""
        return isinstance(self._driver.error, DeviceLostError)

    @property
    def loading(self) -> bool:
        """The model is not there yet."""
        return self._driver.model is None

    @property
    def model(self) -> Model:
        """The model; ApiError 503 while there is none."""
        if self._driver.model is None:
            raise unavailable("loading model", 1)
        return self._driver.model

    @property
    def alive(self) -> bool:
        """The engine's thread runs, and does not hang in a step."""
        since = self._driver.stepping_since
        return self._driver.alive and (since is None or time.monotonic() - since < _HANGING)

    @property
    def ready(self) -> bool:
        """New work is welcome."""
        return self.alive and not (self.loading or self.draining or self.leaving or self.error)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What the model answers to; the first is its id."""
        return self.settings.names or (self.model.name,)

    @cached_property
    def fingerprint(self) -> str:
        """Version and device."""
        return f"bitnet-{core_version()}-{self.model.device.info.backend}"

    def _open(self) -> Model:
        model = self._load()
        model.tokenizer.prepare()
        if self._loop is not None:
            names = self.settings.names or (model.name,)
            self._call_soon(self.metrics.loaded, names[0], core_version(), model.device.info.request)
        return model

    # Texts.

    def check_accepting(self) -> None:
        """ApiError unless new work is taken now."""
        _ = self.model
        if self.draining:
            raise unavailable("the server is shutting down", 5, again=False)
        if self.lost:
            raise unavailable("the device is lost", 5, again=False)
        if not self.alive:
            raise unavailable("the engine does not answer", 30, again=False)

    def check_room(self, texts: int) -> None:
        """ApiError 429 where the queue has no room for so many more."""
        room = self.model.engine.sequences + self.settings.max_queue
        if self.active and self.active + texts > room:
            seconds = str(self._wait_seconds())
            raise ApiError(
                429, "the queue is full", kind="rate_limit_error", code="queue_full", headers={"retry-after": seconds}
            )

    def check_text(self, text: str) -> None:
        """UsageError for a text that cannot fit in the context, without tokenizing it."""
        self.model.tokenizer.check_fits(text, self.model.engine.limit)

    async def submit(self, orders: Sequence[Order], created: float) -> tuple[Inbox, list[Job]]:
        """Queue texts; ApiError where one cannot be made. `created`: when the request came (jobs.now)."""
        self.check_accepting()
        self.check_room(len(orders))
        inbox = Inbox()
        self.active += len(orders)
        self.requests += 1
        future = self._driver.call(lambda model: self._add(model, orders, inbox, created))
        try:
            jobs = await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: self._call_soon(self._abandon, done, len(orders)))
            raise
        except Exception as exc:
            self.active -= len(orders)
            raise from_engine(exc) from exc
        return inbox, jobs

    def cancel(self, jobs: Sequence[Job]) -> None:
        """End the texts of a client that has left; those that are over already are left alone."""
        left = [job for job in jobs if not job.over]
        for job in left:
            self._close(job)
            self.metrics.cancelled()
        if left:
            self._driver.call(lambda model: self._drop(model, left))

    def end_all(self) -> None:
        """Fail whatever is under way; its clients are told."""
        error = unavailable("the server is shutting down", 5, again=False)
        self._driver.call(lambda model: self._deliver(model.engine.fail_all(error)))

    def _abandon(self, future: Future[list[Job]], texts: int) -> None:
        """The request was given up while its texts were being queued."""
        if future.exception():
            self.active -= texts
        else:
            self.cancel(future.result())

    def _add(self, model: Model, orders: Sequence[Order], inbox: Inbox, created: float) -> list[Job]:
        from bitnet_core.engine.text import TextMaker
        from bitnet_core.tokenizer import StreamDecoder

        jobs: list[Job] = []
        try:
            for order in orders:
                sequence = model.engine.add(
                    order.tokens,
                    order.sampling,
                    max_tokens=order.max_tokens,
                    stop_ids=order.stop_ids,
                    constraint=order.constraint,
                    scored=order.scored,
                )
                maker = TextMaker(sequence, StreamDecoder(model.tokenizer), order.stops, order.reasoning)
                jobs.append(Job(order.index, maker, inbox, created))
        except BaseException:
            self._drop(model, jobs)
            raise
        self._jobs.update((job.sequence.id, job) for job in jobs)
        return jobs

    def _drop(self, model: Model, jobs: Sequence[Job]) -> None:
        for job in jobs:
            model.engine.finish(job.sequence)
            self._jobs.pop(job.sequence.id, None)

    def _deliver(self, updates: list[Update]) -> None:
        """In the engine's thread: hand what a step gave to the loop, in one call."""
        model = self._driver.model
        batch: list[tuple[Job, Delta]] = []
        for update in updates:
            job = self._jobs.get(update.sequence.id)
            delta = job.advance(model.engine) if job is not None and model is not None else None
            if job is not None and delta is not None:
                batch.append((job, delta))
                if delta.finish is not None:
                    del self._jobs[update.sequence.id]
        if batch:
            self._call_soon(self._dispatch, batch)

    def _dispatch(self, batch: list[tuple[Job, Delta]]) -> None:
        time_now, tokens = now(), 0
        next_tokens = self.metrics.next_tokens
        for job, delta in batch:
            if job.over:
                continue
            tokens += delta.tokens
            if delta.tokens and not job.first:
                job.first = job.last = time_now
                self.metrics.first_token(time_now - job.created)
            elif delta.tokens:
                next_tokens(time_now - job.last, delta.tokens)
                job.last = time_now
            if delta.finish is not None:
                self._finished(job, delta.finish, time_now)
            job.inbox.put(delta)
        self.tokens_made += tokens
        if tokens:
            self.metrics.stepped(tokens)

    def _finished(self, job: Job, reason: str, time_now: float) -> None:
        self._close(job)
        sequence = job.sequence
        self._times.append(time_now - (sequence.admitted or time_now))
        self.metrics.ended(
            reason,
            prompt=sequence.prompt_tokens,
            generated=sequence.generated_tokens,
            whole=time_now - job.created,
            queued=(sequence.admitted or time_now) - sequence.added,
            prefill=sequence.prefill_seconds,
            decode=sequence.decode_seconds,
        )

    def _close(self, job: Job) -> None:
        job.over = True
        self.active -= 1

    def _wait_seconds(self) -> int:
        """About how long until there is room again."""
        mean = sum(self._times) / len(self._times) if self._times else 1.0
        slots = max(1, self.model.engine.sequences)
        return min(60, max(1, math.ceil(max(0, self.active - slots) * mean / slots)))

    def _figures(self) -> dict[str, int | float] | None:
        return None if self._driver.model is None else self._driver.model.engine.figures()

    def _counts(self) -> Counts:
        engine = self.model.engine
        launches = {device: counts.total() for device, counts in engine.kernel_launches_by_device.items()}
        return {
            "errors": (
                "Errors by kind, those that the engine recovered from included.",
                "kind",
                engine.scheduler.errors.counts,
            ),
            "kernel_launches": ("Kernel launches by device.", "device", launches),
        }

    def _call_soon(self, action: Callable[..., object], *arguments: object) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(action, *arguments)
