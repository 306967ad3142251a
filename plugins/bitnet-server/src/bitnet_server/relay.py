"""HTTP requests that one process of the server takes and another one answers, as ASGI messages over a channel."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bitnet_server.streams import abort

_SCOPE = (
    "type",
    "asgi",
    "http_version",
    "server",
    "client",
    "scheme",
    "root_path",
    "method",
    "path",
    "raw_path",
    "query_string",
    "headers",
)
"""The parts of a scope that the other process needs."""

Tell = Callable[..., None]
"""Sends a message: its kind, the number of the HTTP request, and what belongs to it. It does not raise."""


class Relay:
    """An ASGI application that has another process answer; used on the event loop only.

    It tells ("http", number, scope), ("received", number, ASGI message) and ("left", number), and is given the ASGI
    messages of the answer, and None after them. seconds: after which a client that takes nothing is given up.
    """

    def __init__(self, tell: Tell, seconds: float) -> None:
        self._tell, self._seconds = tell, seconds
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Queue[Message | None]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        number, answer = next(self._numbers), asyncio.Queue[Message | None]()
        self._answers[number] = answer
        self._tell("http", number, {name: scope[name] for name in _SCOPE if name in scope})
        receiver = asyncio.create_task(self._receive(number, receive))
        try:
            while (message := await answer.get()) is not None:
                async with asyncio.timeout(self._seconds):
                    await send(message)
        except TimeoutError:
            await abort(scope)
        finally:
            receiver.cancel()
            del self._answers[number]
            self._tell("left", number)

    def answered(self, number: int, message: Message | None) -> None:
        """Take a message of an answer."""
        if number in self._answers:
            self._answers[number].put_nowait(message)

    def end(self) -> None:
        """End all answers: the other process has ended."""
        for answer in self._answers.values():
            answer.put_nowait(None)

    async def _receive(self, number: int, receive: Receive) -> None:
        while True:
            message = await receive()
            self._tell("received", number, message)
            if message["type"] == "http.disconnect":
                return


class Answers:
    """The other end of a Relay: it runs an application for its requests; used on the event loop only.

    tell: sends ("answered", number, ASGI message).
    """

    def __init__(self, app: ASGIApp, tell: Tell) -> None:
        self._app, self._tell = app, tell
        self._received: dict[int, asyncio.Queue[Message]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def http(self, number: int, scope: dict[str, Any]) -> None:
        """Answer a request."""
        self._received[number] = asyncio.Queue()
        self._tasks[number] = asyncio.create_task(self._answer(number, scope))

    def received(self, number: int, message: Message) -> None:
        """Take a part of a request's body, or that its client is gone."""
        if number in self._received:
            self._received[number].put_nowait(message)

    def left(self, number: int) -> None:
        """End an answer that nobody reads."""
        self.received(number, {"type": "http.disconnect"})

    def end(self) -> None:
        """End all answers: the other process has ended."""
        for number in self._received:
            self.left(number)

    async def _answer(self, number: int, scope: dict[str, Any]) -> None:
        async def send(message: Message) -> None:
            self._tell("answered", number, message)

        try:
            with suppress(Exception):  # the application has logged it; an answer without a head is a 500
                await self._app({**scope, "extensions": {}, "state": {}}, self._received[number].get, send)
        finally:
            self._tell("answered", number, None)
            del self._received[number]
            del self._tasks[number]
