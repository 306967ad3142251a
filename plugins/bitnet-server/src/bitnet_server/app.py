"""HTTP endpoints of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
from bitnet_hal.errors import BitnetError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from bitnet_server import page
from bitnet_server.errors import ApiError, from_engine, internal, unavailable
from bitnet_server.middleware import Middleware
from bitnet_server.request_state import now
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

if TYPE_CHECKING:  # they take long to import: the server listens meanwhile
    from bitnet_server.chat import ChatCall
    from bitnet_server.completions import CompletionCall

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
            "/static/{name}": page.static,
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
        """Return the properties that the chat page shows."""
        service, model = self.service, self.service.model
        return _json(
            {
                "model": service.names[0],
                "device": model.device.info.name,
                "backend": model.device.info.backend,
                "n_ctx": model.engine.max_model_len,
                "version": service.fingerprint,
                "slots": model.engine.sequences,
            }
        )

    async def slots(self, request: Request) -> Response:
        """Return the running requests, without their texts."""
        scheduler = self.service.model.engine.scheduler
        return _json(
            [
                {"id": s.id, "state": state, "prompt_tokens": s.prompt_tokens, "generated_tokens": s.generated_tokens}
                for state, texts in (("running", scheduler.running), ("waiting", scheduler.waiting))
                for s in list(texts)
            ]
        )

    async def models(self, request: Request) -> Response:
        """Return every name of the model."""
        return _json({"object": "list", "data": [self._model(name) for name in self._names()]})

    async def model(self, request: Request) -> Response:
        """Return one name of the model."""
        name = request.path_params["id"]
        if name not in self._names():
            raise ApiError(404, f"there is no model {name[:200]!r} here", param="model", code="model_not_found")
        return _json(self._model(name))

    async def tokenize(self, request: Request) -> Response:
        """Return the tokens of a text."""
        asked, model = await self._parsed(request, TokenizeRequest), self.service.model
        text = asked.content if asked.content is not None else asked.prompt
        if text is None:
            raise ApiError(400, "content is missing", param="content")
        self.service.check_text(text)
        bos = asked.add_special and model.tokenizer.add_bos
        tokens = await asyncio.to_thread(model.tokenizer.encode, text, add_bos=bos, parse_special=asked.parse_special)
        return _json({"tokens": tokens})

    async def detokenize(self, request: Request) -> Response:
        """Return the text of tokens."""
        asked, tokenizer = await self._parsed(request, DetokenizeRequest), self.service.model.tokenizer
        vocab = self.service.model.config.vocab
        if asked.tokens and not 0 <= min(asked.tokens) <= max(asked.tokens) < vocab:
            raise ApiError(400, f"a token id is outside 0..{vocab - 1}", param="tokens")
        text = b"".join(tokenizer.token_bytes(token) for token in asked.tokens).decode("utf-8", "replace")
        return _json({"content": text})

    async def apply_template(self, request: Request) -> Response:
        """Render messages as a prompt."""
        from bitnet_server.chat import plain_messages
        from bitnet_server.tools import ToolChoice

        asked, model = await self._parsed(request, TemplateRequest), self.service.model
        plain = plain_messages(asked.messages, ToolChoice())
        return _json({"prompt": await asyncio.to_thread(model.chat_template.render, plain)})

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
        generations = await asyncio.to_thread(call.generations)
        queue, states = await service.submit(generations, created)
        call.states = states
        if call.request.stream:
            await EventStream(service, queue, states, call.formatter())(scope, receive, send)
            return
        async with Reader(service, queue, states, receive) as reader:
            try:
                deltas = await collect(reader, service.settings.keep_alive)
            except ClientGoneError:
                return
        await _json(call.to_response(deltas))(scope, receive, send)

    def _parsed(self, body: bytes) -> ChatCall | CompletionCall:
        if self._chat:
            from bitnet_server.chat import ChatCall

            return ChatCall(self._service, parse(body, ChatRequest))
        from bitnet_server.completions import CompletionCall

        return CompletionCall(self._service, parse(body, CompletionRequest))


async def read_body(request: Request, service: Service) -> bytes:
    """Read the request body. Raises ApiError 413 or 408 if it is too long or too slow, 400 if the client left."""
    limit, parts, size = service.settings.max_body, [], 0
    too_long = ApiError(413, f"the body is longer than {limit} bytes", headers={"connection": "close"})
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and (len(announced) > 18 or int(announced) > limit):
        raise too_long  # before `100 Continue` asks for it
    try:
        async with asyncio.timeout(service.settings.body_timeout):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise too_long
                parts.append(part)
    except ClientDisconnect as exc:
        raise ApiError(400, "the client left before the end of the body") from exc
    except TimeoutError as exc:
        raise ApiError(408, "the body came too slowly", headers={"connection": "close"}) from exc
    return b"".join(parts)


def _json(document: Any) -> Response:
    return Response(msgspec.json.encode(document), media_type="application/json")


async def _refused(request: Request, error: Exception) -> Response:
    return from_engine(error).response()


async def _failed(request: Request, error: Exception) -> Response:
    """Return an error response; the middleware has logged the exception."""
    return internal().response()


async def _not_found(request: Request, _: Exception) -> Response:
    return ApiError(404, f"there is no {request.url.path[:200]} here", code="unknown_url").response()


async def _wrong_method(request: Request, _: Exception) -> Response:
    return ApiError(405, f"{request.method} is not possible here", code="method_not_allowed").response()
