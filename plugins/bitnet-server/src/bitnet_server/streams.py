"""Waiting for texts: server-sent events as they come, or everything at the end; whoever leaves frees the place."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec
from starlette.types import Receive, Scope, Send

from bitnet_server.alarm import Alarm
from bitnet_server.errors import ApiError, from_engine, unavailable
from bitnet_server.jobs import Delta, Inbox, Job, now
from bitnet_server.service import Service

_PACE = 0.02
"""Least seconds between two events of one stream: many small ones cost more than they give."""


Write = Callable[[bytes], Awaitable[None]]


class ClientGoneError(Exception):
    """Nobody reads the answer."""


class Wording(Protocol):
    """How deltas become chunks of an answer."""

    def start(self) -> list[bytes]:
        """JSON of what comes first."""

    def chunks(self, delta: Delta) -> list[bytes]:
        """JSON of what a delta adds."""

    def end(self) -> list[bytes]:
        """JSON of what comes last."""


class Reader:
    """Takes the deltas of a request's jobs until all are done, within the times that the settings allow."""

    def __init__(self, service: Service, inbox: Inbox, jobs: Sequence[Job], receive: Receive) -> None:
        self._service, self._inbox, self._jobs = service, inbox, jobs
        self._gone = False
        self._open = len(jobs)
        self._alarm = Alarm(inbox.event.set)
        self._watcher = asyncio.create_task(self._watch(receive))

    async def __aenter__(self) -> Reader:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._alarm.stop()
        self._watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._watcher
        self._service.cancel(self._jobs)

    async def read(self, seconds: float) -> list[Delta]:
        """What came, waiting for it at most so long; [] when all is done or nothing came.

        ClientGoneError where the client has left, ApiError where a text failed or took too long.
        """
        if self._open and not self._inbox.deltas:
            self._alarm.set(seconds)
            await self._inbox.event.wait()
            self._alarm.off()
        if self._gone:
            raise ClientGoneError
        taken = self._inbox.take()
        for delta in taken:
            if delta.error is not None:
                raise from_engine(delta.error) from delta.error
            self._open -= delta.finish is not None
        if self._open:
            self._check_times()
        return taken

    @property
    def done(self) -> bool:
        """Every text has ended."""
        return not self._open and not self._inbox.deltas

    def _check_times(self) -> None:
        settings = self._service.settings
        for job in self._jobs:
            waited = now() - job.created
            if not job.over and job.sequence.admitted is None and waited > settings.queue_timeout:
                raise unavailable("the request waited too long for its turn", 10)
            if not job.over and waited > settings.request_timeout:
                raise unavailable("the request took too long", 10, again=False)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._inbox.event.set()


async def collect(reader: Reader, seconds: float) -> list[Delta]:
    """All deltas of texts that are answered as a whole."""
    found: list[Delta] = []
    while not reader.done:
        found += await reader.read(seconds)
    return found


class Sender:
    """Writes parts of an answer; ClientGoneError where nobody has taken one in for `seconds`."""

    def __init__(self, send: Send, seconds: float) -> None:
        self._send, self._seconds = send, seconds
        self._task = asyncio.current_task()
        self._late = False
        self._alarm = Alarm(self._give_up)

    async def write(self, body: bytes) -> None:
        """One part, with more to come."""
        self._alarm.set(self._seconds)
        try:
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
        except asyncio.CancelledError:
            if self._late and self._task is not None and not self._task.uncancel():
                raise ClientGoneError from None
            raise
        finally:
            self._alarm.off()

    def stop(self) -> None:
        """Nothing more is written."""
        self._alarm.stop()

    def _give_up(self) -> None:
        self._late = True
        if self._task is not None:
            self._task.cancel()


class EventStream:
    """An ASGI answer: chunks of several texts as events, a comment in long silences, an error event at a failure."""

    def __init__(self, service: Service, inbox: Inbox, jobs: Sequence[Job], wording: Wording) -> None:
        self._service, self._inbox, self._jobs, self._wording = service, inbox, jobs, wording

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        async with Reader(self._service, self._inbox, self._jobs, receive) as reader:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            sender = Sender(send, self._service.settings.send_timeout)
            try:
                await self._events(reader, sender.write)
                await send({"type": "http.response.body", "body": b""})
            except ClientGoneError:
                pass
            finally:
                sender.stop()

    async def _events(self, reader: Reader, write: Write) -> None:
        sent = now()
        try:
            await write(_events(self._wording.start()))
            while not reader.done:
                deltas = await reader.read(self._service.settings.keep_alive)
                chunks = [chunk for delta in _joined(deltas) for chunk in self._wording.chunks(delta)]
                await write(_events(chunks) if deltas else b": keep-alive\n\n")
                pause = sent + _PACE - now()
                if deltas and pause > 0 and not reader.done:
                    await asyncio.sleep(pause)
                sent = now()
            await write(_events([*self._wording.end(), b"[DONE]"]))
        except ApiError as error:
            await write(_events([msgspec.json.encode(error.document())]))


def _joined(deltas: list[Delta]) -> list[Delta]:
    """What came for one text as one delta, in the order of their last parts."""
    parts: dict[int, Delta] = {}
    for new in deltas:
        old = parts.pop(new.index, None)
        if old is not None:
            scores, thoughts = old.scores + new.scores, old.reasoning + new.reasoning
            new = Delta(new.index, old.text + new.text, old.tokens + new.tokens, scores, thoughts, new.finish)
        parts[new.index] = new
    return list(parts.values())


def _events(documents: list[bytes]) -> bytes:
    return b"".join(b"data: " + document + b"\n\n" for document in documents)
