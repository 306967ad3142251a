"""HTTP endpoints of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from bitnet_hal.errors import BitnetError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from bitnet_server import descriptions, page
from bitnet_server.call import Call
from bitnet_server.error_shapes import error_response
from bitnet_server.errors import ApiError, from_engine, internal, unavailable
from bitnet_server.middleware import Middleware
from bitnet_server.protocols import paths
from bitnet_server.request_state import now
from bitnet_server.response import Document
from bitnet_server.schema import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    R,
    TemplateRequest,
    TokenizeRequest,
    parse,
)
from bitnet_server.service import Service
from bitnet_server.streams import ClientGoneError, EventStream, Reader, collect

T = TypeVar("T")

Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(service: Service) -> ASGIApp:
    """Build the server as an ASGI application; its caller starts the service."""
    endpoints = Endpoints(service)
    routes = endpoints.routes()
    errors: dict[Any, Any] = {
        404: _not_found,
        405: _wrong_method,
        ApiError: _refused,
        BitnetError: _refused,
        ClientDisconnect: _gone,
        Exception: _failed,
    }
    app = Starlette(routes=routes, exception_handlers=errors)
    known = frozenset(route.path for route in routes if isinstance(route, Route))
    return Middleware(app, service.settings, service.metrics, known)


class Endpoints:
    """The handlers of all paths except chats and completions."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def routes(self) -> list[BaseRoute]:
        """Return the routes; those of /v1 exist without the prefix too if other servers have them."""
        get: dict[str, Endpoint] = {
            "/": page.index,
            "/static/{name:path}": page.static,
            "/health": self.health,
            "/v1/health": self.health,
            "/health/live": self.live,
            "/health/ready": self.ready,
            "/metrics": self.metrics,
            "/props": self.props,
            "/v1/models": self.models,
            "/models": self.models,
            "/v1/models/{id:path}": self.model,
        }
        if self.service.settings.slots:
            get["/slots"] = self.slots
        post: dict[str, Endpoint] = {
            "/tokenize": self.tokenize,
            "/detokenize": self.detokenize,
            "/apply-template": self.apply_template,
        }
        made: list[BaseRoute] = [Route(path, endpoint, methods=["GET"]) for path, endpoint in get.items()]
        made += [Route(path, endpoint, methods=["POST"]) for path, endpoint in post.items()]
        for path in ("/chat/completions", "/completions"):
            for prefix in ("/v1", ""):
                endpoint = Generate(self.service, chat=path.startswith("/chat"))
                made.append(Route(prefix + path, endpoint, methods=["POST"]))
        return made + self._other_apis()

    def _other_apis(self) -> list[BaseRoute]:
        service = self.service
        made: list[BaseRoute] = []
        for path, read in paths.CALLS.items():
            made.append(Route(path, GenerateTranslated(service, read), methods=["POST"]))
        for path, answer in paths.POSTS.items():
            made.append(Route(path, _posted(service, answer), methods=["POST"]))
        for path, describe in paths.GETS.items():
            made.append(Route(path, _got(service, describe), methods=["GET"]))
        made.append(Route("/v1/responses/{id}", self.kept_response, methods=["GET", "DELETE"]))
        return made

    async def health(self, request: Request) -> Response:
        """Return 200 once the model is loaded."""
        if self.service.loading:
            raise unavailable("loading model" if self.service.error is None else "the model could not be loaded")
        return _json({"status": "ok"})

    async def live(self, request: Request) -> Response:
        """Return 200 while the engine's thread runs."""
        if not self.service.alive:
            raise unavailable("the engine does not answer", 30)
        return _json({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Return 200 while new requests are accepted."""
        if not self.service.ready:
            raise unavailable("not ready")
        return _json({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """Return the Prometheus metrics."""
        return Response(self.service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def props(self, request: Request) -> Response:
        """Return the properties of the model and the server."""
        return _json(descriptions.props(self.service))

    async def slots(self, request: Request) -> Response:
        """Return the running and waiting requests, without their texts."""
        return _json(descriptions.slots(self.service))

    async def models(self, request: Request) -> Response:
        """Return every name of the model."""
        return _json({"object": "list", "data": [self._model(name) for name in self._names()]})

    async def model(self, request: Request) -> Response:
        """Return one name of the model."""
        name = request.path_params["id"]
        if name not in self._names():
            raise ApiError(404, f"there is no model {name[:200]!r} here", param="model", code="model_not_found")
        return _json(self._model(name))

    async def kept_response(self, request: Request) -> Response:
        """Return or drop a response that previous_response_id may name."""
        from bitnet_server.protocols.responses import drop_response, kept_response

        answer = drop_response if request.method == "DELETE" else kept_response
        return _json(answer(self.service, request.path_params["id"]))

    async def tokenize(self, request: Request) -> Response:
        """Return the tokens of a text."""
        asked, model = await self._parsed(request, TokenizeRequest), self.service.model
        text = asked.content if asked.content is not None else asked.prompt
        if text is None:
            raise ApiError(400, "content is missing", param="content")
        self.service.check_text(text)
        bos = (asked.add_special or asked.add_special_tokens) and model.tokenizer.add_bos
        special = asked.parse_special if asked.content is not None else True  # as in vLLM, whose field is prompt
        tokens = await in_thread(lambda: model.tokenizer.encode(text, add_bos=bos, parse_special=special))
        return _json({"tokens": tokens, "count": len(tokens), "max_model_len": model.engine.max_model_len})

    async def detokenize(self, request: Request) -> Response:
        """Return the text of tokens."""
        asked, tokenizer = await self._parsed(request, DetokenizeRequest), self.service.model.tokenizer
        vocab = self.service.model.config.vocab

        def decoded() -> str:
            if max(asked.tokens, default=0) >= vocab:
                raise ApiError(400, f"tokens names a token outside 0..{vocab - 1}", param="tokens")
            return b"".join(map(tokenizer.token_bytes, asked.tokens)).decode("utf-8", "replace")

        text = await in_thread(decoded)
        return _json({"content": text, "prompt": text})

    async def apply_template(self, request: Request) -> Response:
        """Render messages as a prompt."""
        from bitnet_server.chat import plain_messages

        asked, model = await self._parsed(request, TemplateRequest), self.service.model
        plain = plain_messages(asked.messages)
        return _json({"prompt": await in_thread(lambda: model.chat_template.render(plain))})

    def _names(self) -> tuple[str, ...]:
        _ = self.service.model
        return self.service.names

    def _model(self, name: str) -> dict[str, Any]:
        model = self.service.model
        meta = {
            "n_ctx": model.engine.max_model_len,
            "n_vocab": model.config.vocab,
            "device": model.device.info.request,
            "device_name": model.device.info.name,
        }
        return {"id": name, "object": "model", "created": self.service.created, "owned_by": "bitnet", "meta": meta}

    async def _parsed(self, request: Request, kind: type[R]) -> R:
        self.service.check_accepting()
        return parse(await read_body(request, self.service), kind)


class Generate:
    """The handler of chats and completions: an ASGI application, so that a client's disconnect is noticed."""

    def __init__(self, service: Service, *, chat: bool) -> None:
        self._service, self._chat = service, chat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, created = self._service, now()
        service.check_accepting()
        service.check_room(1)
        try:
            body = await read_body(Request(scope, receive), service)
        except ClientDisconnect:
            return
        call = self._parsed(body)
        generations = await in_thread(call.generations)
        queue, states = await service.submit(generations, created)
        call.states = states
        if call.request.stream:
            await EventStream(service, queue, states, call.formatter(), call.headers())(scope, receive, send)
            return
        async with Reader(service, queue, states, receive) as reader:
            try:
                deltas = await collect(reader, service.settings.keep_alive)
            except ClientGoneError:
                return
        await _json(call.to_response(deltas), call.headers())(scope, receive, send)

    def _parsed(self, body: bytes) -> Call:
        if self._chat:
            from bitnet_server.chat import ChatCall

            return ChatCall(self._service, parse(body, ChatRequest))
        from bitnet_server.completions import CompletionCall

        return CompletionCall(self._service, parse(body, CompletionRequest))


class GenerateTranslated(Generate):
    """The handler of a path of another API. read: parses a body."""

    def __init__(self, service: Service, read: Callable[[Service, bytes], Call]) -> None:
        super().__init__(service, chat=True)
        self._read = read

    def _parsed(self, body: bytes) -> Call:
        return self._read(self._service, body)


def _posted(service: Service, answer: Callable[[Service, bytes], Document]) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        service.check_accepting()
        body = await read_body(request, service)
        return _json(await in_thread(lambda: answer(service, body)))

    return endpoint


def _got(service: Service, describe: Callable[[Service], Document]) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return _json(describe(service))

    return endpoint


async def in_thread(function: Callable[[], T]) -> T:
    """Call a function in a thread.

    A StopIteration becomes a RuntimeError: a future cannot hold it, and its waiter would wait for ever.
    """

    def guarded() -> T:
        try:
            return function()
        except StopIteration as exc:
            raise RuntimeError("a function raised StopIteration") from exc

    return await asyncio.to_thread(guarded)


async def read_body(request: Request, service: Service) -> bytes:
    """Read the request body. Raises ApiError 413 or 408 if it is too long or too slow."""
    limit, parts, size = service.settings.max_body, [], 0
    announced = request.headers.get("content-length", "0")
    try:
        if announced.isdecimal() and int(announced[:20]) > limit:  # before the client is told to continue
            raise ApiError(413, f"the body is longer than {limit} bytes", headers={"connection": "close"})
        async with asyncio.timeout(service.settings.body_timeout):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise ApiError(413, f"the body is longer than {limit} bytes", headers={"connection": "close"})
                parts.append(part)
    except TimeoutError as exc:
        raise ApiError(408, "the body came too slowly", headers={"connection": "close"}) from exc
    return b"".join(parts)


def _json(document: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(document), headers=headers, media_type="application/json")


async def _refused(request: Request, error: Exception) -> Response:
    return error_response(from_engine(error), request.scope)


async def _gone(request: Request, error: Exception) -> Response:
    """Return a response that nobody reads: the client left while it sent its request."""
    return Response(status_code=499)


async def _failed(request: Request, error: Exception) -> Response:
    """Return an error response; the middleware has logged the exception."""
    return error_response(internal(), request.scope)


async def _not_found(request: Request, _: Exception) -> Response:
    error = ApiError(404, f"there is no {request.url.path[:200]} here", code="unknown_url")
    return error_response(error, request.scope)


async def _wrong_method(request: Request, _: Exception) -> Response:
    error = ApiError(405, f"{request.method} is not possible here", code="method_not_allowed")
    return error_response(error, request.scope)
