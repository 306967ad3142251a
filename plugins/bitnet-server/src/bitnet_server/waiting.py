"""Waiting for the model of a request."""

from __future__ import annotations

import asyncio

from starlette.types import Receive

from bitnet_server.call import Call
from bitnet_server.models import Models
from bitnet_server.parsed_request import ParsedRequest
from bitnet_server.served_model import ServedModel
from bitnet_server.streams import ClientGoneError, StreamStart


async def model_of(
    models: Models, parsed_request: ParsedRequest[Call], receive: Receive, start: StreamStart | None
) -> ServedModel:
    """Return the loaded model that a request names, to be released after it; a stream gets comments while it waits.

    Raises ClientGoneError if the client disconnects meanwhile, ApiError if the model cannot be used.
    """
    one = models.acquire_loaded(parsed_request.model)
    if one is not None:
        return one
    acquiring = asyncio.create_task(models.acquire(parsed_request.model))
    gone = asyncio.create_task(_disconnected(receive))
    try:
        while not acquiring.done():
            await asyncio.wait({acquiring, gone}, timeout=models.settings.keep_alive, return_when="FIRST_COMPLETED")
            if gone.done() and not acquiring.done():
                raise ClientGoneError
            if not acquiring.done() and start is not None and parsed_request.framing.keep_alive:
                await start.keep_alive(parsed_request.framing)
        return acquiring.result()
    finally:
        for task in (acquiring, gone):
            task.cancel()
        await asyncio.wait({acquiring, gone})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
