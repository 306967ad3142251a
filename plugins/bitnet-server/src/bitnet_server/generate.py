"""The handler of paths that generate text."""

from __future__ import annotations

from collections.abc import Callable

from bitnet_hal.errors import BitnetError
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from bitnet_server.bodies import at_once, in_thread, json_response, read_body
from bitnet_server.call import Call
from bitnet_server.errors import ApiError, from_engine
from bitnet_server.models import Models
from bitnet_server.parsed_request import ParsedRequest
from bitnet_server.request_state import GenerationRequest, now
from bitnet_server.streams import ClientGoneError, EventStream, Reader, StreamStart, abort, collect
from bitnet_server.waiting import model_of


class Generate:
    """The handler of a path that generates text: an ASGI application, so that a client's disconnect is noticed.

    read: parses a body.
    """

    def __init__(self, models: Models, read: Callable[[bytes], ParsedRequest[Call]]) -> None:
        self._models, self._read = models, read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        models, created = self._models, now()
        models.check_accepting()
        models.check_room()
        try:
            body = await read_body(Request(scope, receive), models.settings)
        except ClientDisconnect:
            return
        asked = await at_once(lambda: self._read(body), body)
        if asked.unloaded is not None and models.find(asked.model).gone:
            await asked.unloaded(scope, receive, send)
            return
        start = StreamStart(send, asked.framing.media_type, models.settings.send_timeout) if asked.stream else None
        try:
            one = await model_of(models, asked, receive, start)
            try:
                service = one.service
                assert service is not None
                call = await at_once(lambda: asked.build(service), body)
                generations = call.generations() if call.quick else await in_thread(call.generations, body)
                await self._answer(call, generations, created, start, scope, receive, send)
            finally:
                models.release(one, asked.keep_alive)
        except ClientGoneError:
            await abort(scope)
        except (ApiError, BitnetError) as error:
            if start is None or not start.sent:
                raise
            try:
                await start.end(asked.framing.failed(from_engine(error)))
            except ClientGoneError:
                await abort(scope)

    async def _answer(
        self,
        call: Call,
        generations: list[GenerationRequest],
        created: float,
        start: StreamStart | None,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        service = call.service
        queue, states = await service.submit(generations, created)
        call.states = states
        if start is not None:
            stream = EventStream(service, queue, states, call.formatter(), start)
            await stream.answer(scope, receive, call.headers())
            return
        async with Reader(service, queue, states, receive) as reader:
            deltas = await collect(reader, service.settings.keep_alive)
        await json_response(call.to_response(deltas), call.headers())(scope, receive, send)
