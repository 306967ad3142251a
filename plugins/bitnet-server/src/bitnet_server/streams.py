"""Waiting for generation: server-sent events or one response; a disconnect aborts the requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from starlette.types import Receive, Scope, Send

from bitnet_server.errors import ApiError, from_engine, unavailable
from bitnet_server.framing import Framing
from bitnet_server.protocol import ABORT
from bitnet_server.request_state import Delta, OutputQueue, RequestState, now
from bitnet_server.service import Service
from bitnet_server.watchdog import Watchdog

_MIN_EVENT_INTERVAL, _MAX_EVENT_INTERVAL = 0.02, 0.04
_HEAD_SECONDS = 0.5
"""Seconds for which the head of a stream may wait for the first text, to be sent with it."""

_SECONDS_PER_STREAM = 0.0006
"""Least seconds between two events of a stream: many small ones cost more than they give, the more the more streams
there are."""


Write = Callable[[bytes], Awaitable[None]]


class ClientGoneError(Exception):
    """The client has disconnected."""


class ResponseFormatter(Framing, Protocol):
    """The protocol that turns deltas into chunks of a response."""

    def start(self) -> list[bytes]:
        """Return the JSON of the first chunks."""

    def chunks(self, delta: Delta) -> list[bytes]:
        """Return the JSON of a delta's chunks."""

    def end(self) -> list[bytes]:
        """Return the JSON of the last chunks."""


class Reader:
    """A reader of the deltas of several requests until all are done, within the time limits of the settings."""

    def __init__(self, service: Service, queue: OutputQueue, states: Sequence[RequestState], receive: Receive) -> None:
        self._service, self._queue, self._states = service, queue, states
        self._gone = False
        self._open = len(states)
        self._watchdog = Watchdog(queue.event.set)
        self._pause = Watchdog(queue.finished.set)
        self._watcher = asyncio.create_task(self._watch(receive))

    async def __aenter__(self) -> Reader:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watchdog.stop()
        self._pause.stop()
        self._watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._watcher
        self._service.cancel(self._states)

    async def read(self, seconds: float) -> list[Delta]:
        """Return new deltas, waiting for at most so long; [] when all is done or nothing came.

        Raises ClientGoneError if the client has disconnected, ApiError if a request failed or took too long.
        """
        if self._open and not self._queue.deltas:
            self._watchdog.set(seconds)
            await self._queue.event.wait()
            self._watchdog.off()
        if self._gone:
            raise ClientGoneError
        taken = self._queue.take()
        for delta in taken:
            if delta.error is not None:
                raise from_engine(delta.error) from delta.error
            self._open -= delta.finish is not None
        if self._open:
            self._check_times()
        return taken

    async def pause(self, seconds: float) -> None:
        """Wait for so long, or until a request has ended: its client should not wait for its last words."""
        if seconds > 0 and not self._queue.finished.is_set():
            self._pause.set(seconds)
            await self._queue.finished.wait()
            self._pause.off()
        self._queue.finished.clear()

    @property
    def done(self) -> bool:
        """True if every request has ended."""
        return not self._open and not self._queue.deltas

    def _check_times(self) -> None:
        settings = self._service.settings
        for state in self._states:
            waited = now() - state.created
            if not state.over and state.request.admitted is None and waited > settings.queue_timeout:
                raise unavailable("the request waited too long for its turn", 10)
            if not state.over and waited > settings.request_timeout:
                raise unavailable("the request took too long", 10, again=False)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._queue.event.set()


async def collect(reader: Reader, seconds: float) -> list[Delta]:
    """Return all deltas of requests whose response is not streamed."""
    found: list[Delta] = []
    while not reader.done:
        found += await reader.read(seconds)
    return found


class Sender:
    """A writer of response parts. Raises ClientGoneError if the client takes none for `seconds`."""

    def __init__(self, send: Send, seconds: float) -> None:
        self._send, self._seconds = send, seconds
        self._task = asyncio.current_task()
        self._late = False
        self._writing = False
        self._watchdog = Watchdog(self.give_up)

    async def write(self, body: bytes, *, more: bool = True) -> None:
        """Write one part. more: others follow."""
        self._watchdog.set(self._seconds)
        self._writing = True
        try:
            await self._send({"type": "http.response.body", "body": body, "more_body": more})
        except asyncio.CancelledError:
            if self._late and self._task is not None and not self._task.uncancel():
                raise ClientGoneError from None
            raise
        finally:
            self._writing = False
            self._watchdog.off()

    def stop(self) -> None:
        """End the response."""
        self._watchdog.stop()

    def give_up(self) -> None:
        """End a `write` that the client does not read."""
        if self._task is not None and self._writing and not self._late:
            self._late = True
            self._task.cancel()


class StreamStart:
    """The head of a streamed response, which is sent once; early if the model is being loaded."""

    def __init__(self, send: Send, media_type: bytes, seconds: float) -> None:
        self.sent = False
        self.sender = Sender(send, seconds)
        self._send, self._media_type = send, media_type

    async def head(self, headers: Mapping[str, str] | None = None) -> None:
        """Send status 200 and the headers, unless they are sent."""
        if self.sent:
            return
        self.sent = True
        own = [
            (b"content-type", self._media_type),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        more = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": [*own, *more]})

    async def keep_alive(self, framing: Framing) -> None:
        """Send a comment."""
        await self.head()
        await self.sender.write(framing.keep_alive)

    async def end(self, last: bytes = b"") -> None:
        """Send the end of the response."""
        try:
            await self.sender.write(last, more=False)
        finally:
            self.sender.stop()


class EventStream:
    """A streamed response: chunks of several choices, a comment in long silences, an error at a failure."""

    def __init__(
        self,
        service: Service,
        queue: OutputQueue,
        states: Sequence[RequestState],
        formatter: ResponseFormatter,
        start: StreamStart,
    ) -> None:
        self._service, self._queue, self._states, self._wording = service, queue, states, formatter
        self._start = start

    async def answer(self, scope: Scope, receive: Receive, headers: Mapping[str, str]) -> None:
        """Send the response."""
        async with Reader(self._service, self._queue, self._states, receive) as reader:
            await self._start.head(headers)
            self._queue.overflow = self._start.sender.give_up
            try:
                await self._start.end(await self._events(reader, self._start.sender.write))
            except ClientGoneError:
                await abort(scope)
            finally:
                self._start.sender.stop()

    async def _events(self, reader: Reader, write: Write) -> bytes:
        """Write the events as they come; returns the last ones, which end the response in one write."""
        sent = now()
        wording, keep_alive = self._wording, self._service.settings.keep_alive
        try:
            chunks = wording.start()
            deltas = await reader.read(min(_HEAD_SECONDS, keep_alive))
            if not deltas and not reader.done:
                await write(wording.frame(chunks))  # with the head
                chunks, deltas = [], await reader.read(keep_alive)
            while True:
                chunks += [chunk for delta in _joined(deltas) for chunk in wording.chunks(delta)]
                if reader.done:
                    return wording.frame([*chunks, *wording.end()]) + wording.last
                await write(wording.frame(chunks) if deltas else wording.keep_alive)
                if deltas:
                    await reader.pause(sent + self._interval() - now())
                sent = now()
                chunks, deltas = [], await reader.read(keep_alive)
        except ApiError as error:
            return self._wording.failed(error)

    def _interval(self) -> float:
        """Return the minimum seconds between two events: each costs the same time, however long its text."""
        return min(_MAX_EVENT_INTERVAL, max(_MIN_EVENT_INTERVAL, _SECONDS_PER_STREAM * self._service.active))


async def abort(scope: Scope) -> None:
    """End the connection of a client that has left or does not read, so that the server does not wait for it."""
    if (abort := scope.get("extensions", {}).get(ABORT)) is not None:
        abort["now"]()
        await asyncio.sleep(0)  # let the server notice it


def _joined(deltas: list[Delta]) -> list[Delta]:
    """Merge the deltas of each request into one, in the order of their last parts."""
    parts: dict[int, Delta] = {}
    for new in deltas:
        old = parts.pop(new.index, None)
        if old is not None:
            scores, thoughts = old.scores + new.scores, old.reasoning + new.reasoning
            new = Delta(new.index, old.text + new.text, old.tokens + new.tokens, scores, thoughts, new.finish)
        parts[new.index] = new
    return list(parts.values())
