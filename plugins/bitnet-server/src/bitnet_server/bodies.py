"""Bodies of requests and responses, and work in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive

from bitnet_server.errors import ApiError
from bitnet_server.settings import Settings

T = TypeVar("T")


_LARGE = 1 << 18
"""Bytes of a body above which its work leaves the event loop, and the threads of other requests alone."""

_large_bodies = ThreadPoolExecutor(1, "large-bodies")


async def in_thread(function: Callable[[], T], body: bytes = b"") -> T:
    """Call a function in a thread, in one of their own for requests with a large body.

    A StopIteration becomes a RuntimeError: a future cannot hold it, and its waiter would wait for ever.
    """

    def guarded() -> T:
        try:
            return function()
        except StopIteration as exc:
            raise RuntimeError("a function raised StopIteration") from exc

    threads = _large_bodies if len(body) > _LARGE else None
    return await asyncio.get_running_loop().run_in_executor(threads, guarded)


async def at_once(function: Callable[[], T], body: bytes) -> T:
    """Call a function that is quick unless the request's body is large: then in a thread, as it may take a second."""
    return await in_thread(function, body) if len(body) > _LARGE else function()


async def read_body(request: Request, settings: Settings) -> bytes:
    """Read the request body. Raises ApiError 413 or 408 if it is too long or too slow."""
    limit = settings.max_body
    announced = request.headers.get("content-length", "0")
    try:
        if announced.isdecimal() and int(announced[:20]) > limit:  # before the client is told to continue
            raise ApiError(413, f"the body is longer than {limit} bytes", headers={"connection": "close"})
        async with asyncio.timeout(settings.body_timeout):
            return await _parts(request.receive, limit)
    except TimeoutError as exc:
        raise ApiError(408, "the body came too slowly", headers={"connection": "close"}) from exc


async def _parts(receive: Receive, limit: int) -> bytes:
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        more = message.get("more_body", False)
        size += len(part)
        if size > limit:
            raise ApiError(413, f"the body is longer than {limit} bytes", headers={"connection": "close"})
        parts.append(part)
    return b"".join(parts)


def json_response(document: Any, headers: dict[str, str] | None = None) -> Response:
    """Build a response of JSON."""
    return Response(msgspec.json.encode(document), headers=headers, media_type="application/json")
