"""The queue of all devices, and the assignment of requests to replicas.

A request holds its tokens, its sampler and the count of random numbers used, and belongs to the thread of one replica
at a time. If a device fails, only its cache is lost: another device recomputes prompt and tokens and continues the
text.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from bitnet_hal.errors import BitnetError, UsageError

from bitnet_core.engine.replicas.replica import Replica, fastest_of_each_card
from bitnet_core.engine.replicas.routing import TextLength, Work, end_seconds, work_of

if TYPE_CHECKING:  # slow imports: a server should listen before them
    from bitnet_core.engine.request.request import Request
    from bitnet_core.engine.schedule.results import RequestOutput
    from bitnet_core.engine.serving import ServingEngine
    from bitnet_core.engine.thread import HasEngine

Deliver = Callable[["ServingEngine", list["RequestOutput"]], None]
"""Called with the outputs of a step, in the thread of their engine; it must not raise."""

_MOST_MOVES = 2
"""Consecutive devices that may fail during a request that gets no token in between; after more, it may be the cause."""

_SCANNED = 32
"""Number of waiting requests that are considered when a slot becomes free."""


class Dispatcher:
    """The queue of requests, and the replicas that serve them.

    lock: guards everything here, and the replicas' states and requests. several: there may be more than one replica,
    so requests wait here instead of in an engine. closing: True if no more requests are assigned. usual: the usual
    length of a text. handovers: number of requests that a device handed over to others, by device.
    """

    def __init__(self, deliver: Deliver) -> None:
        self.lock = threading.RLock()
        self.replicas: list[Replica[Any]] = []
        self.several = False
        self.closing = False
        self.usual = TextLength()
        self.handovers: Counter[str] = Counter()
        self._deliver = deliver
        self._queue: deque[Request] = deque()
        self._owners: dict[Request, Replica[Any]] = {}
        self._moves: dict[Request, tuple[int, int]] = {}  # number of failed devices, and of tokens at the last failure

    def submit(self, requests: Iterable[Request]) -> None:
        """Queue requests for the replicas."""
        with self.lock:
            self._queue.extend(requests)
            self.assign()

    def cancel(self, requests: Iterable[Request]) -> None:
        """End requests; those that have ended are left alone."""
        with self.lock:
            for request in requests:
                owner = self._owners.get(request)
                if owner is not None:
                    with suppress(BitnetError):  # the thread has ended, which ended the request
                        owner.thread.call(partial(self._cancel_at, owner, request))
                elif request in self._queue:
                    self._queue.remove(request)
                    self._moves.pop(request, None)
                    request.finish_reason = "cancelled"

    def fail_all(self, error: Exception) -> None:
        """End every request with an error."""
        with self.lock:
            self.fail_waiting(error)
            for replica in self.replicas:
                if replica.engine is not None:
                    with suppress(BitnetError):  # as above
                        replica.thread.call(partial(self._fail_at, replica, error))

    def fail_waiting(self, error: Exception) -> None:
        """End the requests that are not assigned to a replica with an error."""
        with self.lock:
            waiting = list(self._queue)
            self._queue.clear()
        engine = self.replicas[0].engine
        if waiting and engine is not None:
            self._fail(waiting, error, engine)

    def fail_rest(self, error: Exception, engine: ServingEngine) -> None:
        """End the requests that the replicas' threads had not taken before they ended."""
        with self.lock:
            left = [request for request in (*self._owners, *self._queue) if request.finish_reason is None]
            self._queue.clear()
        self._fail(left, error, engine)

    def _fail(self, requests: list[Request], error: Exception, engine: ServingEngine) -> None:
        from bitnet_core.engine.schedule.results import RequestOutput

        for request in requests:
            request.error = error
            request.finish_reason = "error"
        self._deliver(engine, [RequestOutput(request, ()) for request in requests])

    def withdraw(self, replica: Replica[Any], error: Exception) -> int:
        """Hand the requests of a failed device over to the others, and end those that may be the cause. Runs in the
        replica's thread, after the engine's `leave`. Returns the number of requests that continue."""
        engine = replica.engine
        assert engine is not None
        with self.lock:
            requests = list(replica.requests)
            replica.requests.clear()
            for request in requests:
                del self._owners[request]
            going_on = [request for request in requests if request.finish_reason is None]
            suspects = {request for request in going_on if self._is_suspect(request)}
            moved = [request for request in going_on if request not in suspects]
            self._queue.extendleft(reversed(moved))
            self.handovers[replica.name] += len(moved)
            self.assign()
        self._deliver(engine, [engine.fail_request(request, error) for request in suspects])
        return len(moved)

    def outputs(self, replica: Replica[Any], outputs: list[RequestOutput]) -> None:
        """Deliver the outputs of a step, and drop the requests that have ended or continue on a device with a larger
        cache. Runs in the replica's thread."""
        engine = replica.engine
        if engine is None:
            return
        outgrown = [output.request for output in outputs if self._outgrown(output.request, engine)]
        for request in outgrown:
            request.finish_reason = None
            request.computed = 0
        self._deliver(engine, outputs)
        ended = [output.request for output in outputs if output.request.finish_reason is not None]
        if ended or outgrown:
            with self.lock:
                for request in (*ended, *outgrown):
                    self._forget(request)
                for request in ended:
                    self.usual.add(request.generated_tokens)
                self._queue.extendleft(outgrown)
                self.assign()

    @property
    def waiting(self) -> list[Request]:
        """The requests that are not assigned to a replica."""
        with self.lock:
            return list(self._queue)

    @property
    def lost(self) -> Exception | None:
        """The last failure if every device has failed, else None."""
        if self.replicas[0].state == "ready":  # the usual case, checked first because every request gets here
            return None
        with self.lock:
            away = all(replica.state == "away" for replica in self.replicas)
            return max(self.replicas, key=lambda replica: replica.left).failure if away else None

    # In the threads of the replicas.

    def _queue_at(self, replica: Replica[Any], requests: Sequence[Request], model: HasEngine) -> None:
        for request in requests:
            if self._owners.get(request) is not replica:  # the device failed meanwhile
                continue
            try:
                model.engine.queue_request(request)
            except UsageError as exc:
                self.outputs(replica, [model.engine.fail_request(request, exc)])

    def _cancel_at(self, replica: Replica[Any], request: Request, model: HasEngine) -> None:
        with self.lock:
            if self._owners.get(request) is not replica:  # it has ended, or was assigned to another device
                self.cancel([request])
                return
            self._forget(request)
        model.engine.finish_request(request)
        with self.lock:
            self.assign()

    def _fail_at(self, replica: Replica[Any], error: Exception, model: HasEngine) -> None:
        self.outputs(replica, model.engine.fail_all(error))

    def _outgrown(self, request: Request, engine: ServingEngine) -> bool:
        """Return True if a request ended because the cache of its device is full, and another device has a larger
        one."""
        if request.finish_reason != "length" or request.generated_tokens >= request.max_tokens:
            return False
        ready = [replica.engine for replica in self.replicas if replica.state == "ready"]
        return any(other is not None and other.max_model_len > engine.max_model_len for other in ready)

    # The caller holds the lock.

    def assign(self) -> None:
        """Assign waiting requests to replicas. With several replicas, a request waits here until the one on which it
        should end first has a free slot."""
        if not self._queue:
            return
        if (error := self.lost) is not None:
            self.fail_waiting(error)
        ready = [replica for replica in self.replicas if replica.state == "ready" and replica.responsive]
        if self.closing or not ready:
            return
        if not self.several:
            self._give(ready[0], list(self._queue))
            self._queue.clear()
            return
        work = {replica: work_of(replica.requests, replica.slots, self.usual) for replica in ready}
        waiting: list[Request] = []
        while self._queue and len(waiting) < _SCANNED:
            request = self._queue.popleft()
            best = self._best(request, work)
            if work[best].requests < best.slots + max(1, best.slots // 8):
                self._give(best, [request])
            else:
                waiting.append(request)
            work[best] = work[best].with_request(request, self.usual)
        self._queue.extendleft(reversed(waiting))

    def _best(self, request: Request, work: dict[Replica[Any], Work]) -> Replica[Any]:
        """Return the replica on which a request should end first, among those with a large enough cache. Of a card
        under several APIs, only the fastest counts."""
        tokens = self.usual.left(request)
        engines = {replica: replica.engine for replica in work if replica.engine is not None}
        length = min(len(request.tokens) + tokens, max(engine.max_model_len for engine in engines.values()))
        large = [replica for replica, engine in engines.items() if length <= engine.max_model_len]
        ends: dict[Replica[Any], float] = {}
        for replica in fastest_of_each_card(large):
            new = len(request.tokens) - engines[replica].cached_prefix(request)
            ends[replica] = end_seconds(replica.speed, work[replica], new, tokens)
        return min(ends, key=ends.__getitem__)

    def _give(self, replica: Replica[Any], requests: Sequence[Request]) -> None:
        replica.requests.update(dict.fromkeys(requests))
        self._owners.update(dict.fromkeys(requests, replica))
        replica.thread.call(partial(self._queue_at, replica, requests))

    def _forget(self, request: Request) -> None:
        self._moves.pop(request, None)
        owner = self._owners.pop(request, None)
        if owner is not None:
            owner.requests.pop(request, None)

    def _is_suspect(self, request: Request) -> bool:
        """Count a device failure during a request; returns True after too many without a new token."""
        moves, tokens = self._moves.get(request, (0, -1))
        moves = 1 if request.generated_tokens > tokens else moves + 1
        self._moves[request] = (moves, request.generated_tokens)
        return moves > _MOST_MOVES
