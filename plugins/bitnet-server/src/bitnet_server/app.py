"""The server as an ASGI application: its paths, and the answers to exceptions."""

from __future__ import annotations

from typing import Any

from bitnet_hal.errors import BitnetError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from bitnet_server import page
from bitnet_server.endpoints import Endpoint, Endpoints, described, described_model, posted
from bitnet_server.error_shapes import error_response
from bitnet_server.errors import ApiError, from_engine, internal
from bitnet_server.generate import Generate
from bitnet_server.middleware import Middleware
from bitnet_server.models import Models
from bitnet_server.protocols import paths


def make_app(models: Models) -> ASGIApp:
    """Build the server as an ASGI application; its caller starts the models."""
    routes = _routes(models)
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
    return Middleware(app, models.settings, models.metrics, known)


def _routes(models: Models) -> list[BaseRoute]:
    """Return the routes; those of /v1 exist without the prefix too if other servers have them."""
    endpoints = Endpoints(models)
    get: dict[str, Endpoint] = {
        "/": page.index,
        "/static/{name:path}": page.static,
        "/health": endpoints.health,
        "/v1/health": endpoints.health,
        "/health/live": endpoints.live,
        "/health/ready": endpoints.ready,
        "/metrics": endpoints.metrics,
        "/props": endpoints.props,
        "/v1/models": endpoints.models,
        "/models": endpoints.models,
        "/v1/models/": endpoints.models,
        "/v1/models/{id:path}": endpoints.model,
    }
    if models.settings.slots:
        get["/slots"] = endpoints.slots
    post: dict[str, Endpoint] = {
        "/tokenize": endpoints.tokenize,
        "/detokenize": endpoints.detokenize,
        "/apply-template": endpoints.apply_template,
        "/models/load": endpoints.load_model,
        "/models/unload": endpoints.unload_model,
        "/api/show": endpoints.show,
        "/api/pull": endpoints.pull,
    }
    made: list[BaseRoute] = [Route(path, endpoint, methods=["GET"]) for path, endpoint in get.items()]
    made += [Route(path, endpoint, methods=["POST"]) for path, endpoint in post.items()]
    made.append(Route("/v1/responses/{id}", endpoints.kept_response, methods=["GET", "DELETE"]))
    made.append(Route("/v1/responses/{id}/input_items", endpoints.input_items, methods=["GET"]))
    made += [Route(path, endpoints.unmanaged, methods=methods) for path, methods in paths.UNMANAGED.items()]
    return _routes_of_apis(models) + made  # they are compared in this order


def _routes_of_apis(models: Models) -> list[BaseRoute]:
    made: list[BaseRoute] = []
    for path, read in paths.CALLS.items():
        made.append(Route(path, Generate(models, read), methods=["POST"]))
    for path, parsed in paths.POSTS.items():
        made.append(Route(path, posted(models, parsed), methods=["POST"]))
    for path, describe in paths.GETS.items():
        made.append(Route(path, described(models, describe), methods=["GET"]))
    for path, describe_one in paths.MODEL_GETS.items():
        made.append(Route(path, described_model(models, describe_one), methods=["GET"]))
    return made


async def _refused(request: Request, error: Exception) -> Response:
    return error_response(from_engine(error), request.scope)


async def _gone(request: Request, error: Exception) -> Response:
    """Return an empty response: the client left while it sent its request, so nobody reads it."""
    return Response(status_code=499)


async def _failed(request: Request, error: Exception) -> Response:
    """Return an error response; the middleware has logged the exception."""
    return error_response(internal(), request.scope)


async def _not_found(request: Request, _: Exception) -> Response:
    error = ApiError(404, f"there is no {request.url.path[:200]} here", code="unknown_url")
    return error_response(error, request.scope)


async def _wrong_method(request: Request, exc: Exception) -> Response:
    """Return a 405 with the methods that starlette names."""
    allowed = dict(exc.headers or {}) if isinstance(exc, HTTPException) else {}
    error = ApiError(405, f"{request.method} is not possible here", code="method_not_allowed", headers=allowed)
    return error_response(error, request.scope)
