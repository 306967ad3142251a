"""Access by host name, origin and API key; request id, CORS and no caching for every response."""

from __future__ import annotations

import hmac
import ipaddress
import logging
import re
import time
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bitnet_server.error_shapes import error_response
from bitnet_server.errors import ApiError, internal
from bitnet_server.metrics import Metrics
from bitnet_server.random_hex import random_hex
from bitnet_server.settings import Settings

log = logging.getLogger(__name__)

_REQUEST_ID = re.compile(r"[\w-]{1,128}", re.ASCII)
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?")
_OPEN = ("/", "/health", "/v1/health", "/health/live", "/health/ready")


class Middleware:
    """ASGI middleware around all endpoints.

    It refuses requests before their bodies are read, and turns exceptions into responses.
    """

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics, known: frozenset[str]) -> None:
        self._app, self._settings, self._metrics, self._known = app, settings, metrics, known

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else random_hex(16)
        scope["request_id"], began, status = request_id, time.perf_counter(), 0
        origin = headers.get("origin")
        friendly = origin is not None and self._origin_allowed(origin, headers)

        async def decorated(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._decorate(MutableHeaders(scope=message), origin if friendly else None, request_id, began)
            await send(message)

        try:
            refusal = self._refusal(scope, headers, foreign=origin is not None and not friendly)
            if refusal is not None:
                await refusal(scope, receive, decorated)
            else:
                await self._app(scope, receive, decorated)
        except ApiError as error:
            await self._answer(error, scope, receive, decorated, bool(status))
        except Exception:
            log.exception("request %s failed", request_id)
            await self._answer(internal(), scope, receive, decorated, bool(status))
        finally:
            self._count(scope, status, request_id, began)

    @staticmethod
    async def _answer(error: ApiError, scope: Scope, receive: Receive, send: Send, started: bool) -> None:
        if not started:
            await error_response(error, scope)(scope, receive, send)

    def _count(self, scope: Scope, status: int, request_id: str, began: float) -> None:
        path = scope["path"] if scope["path"] in self._known else "other"
        self._metrics.http.labels(path, str(status)).inc()
        if "error_reason" in scope:
            self._metrics.rejected(scope["error_reason"], status)
        if self._settings.log_requests:
            took = time.perf_counter() - began
            log.info("%s %s %d %.3f s %s", scope["method"], path, status, took, request_id)

    def _refusal(self, scope: Scope, headers: Headers, foreign: bool) -> Response | None:
        """Return the response to a request that is not allowed or to a preflight, None for all others."""
        self._check_host(headers)
        if foreign:
            raise ApiError(403, "requests from this origin are refused", kind="permission_error", code="origin")
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            allowed = {
                "access-control-allow-methods": "GET, POST, DELETE, OPTIONS",
                "access-control-allow-headers": headers.get("access-control-request-headers", "")[:1000],
                "access-control-max-age": "600",
            }
            return Response(status_code=204, headers=allowed)
        if self._needs_key(scope["path"]):
            self._check_key(headers)
        if headers.get("content-encoding", "identity") != "identity":
            raise ApiError(400, "compressed bodies are refused", param="content-encoding")
        return None

    def _check_host(self, headers: Headers) -> None:
        """Raise ApiError unless there is exactly one Host, by which this server may be called (a page could read
        everything through another name: DNS rebinding).
        """
        hosts = headers.getlist("host")
        match = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if match is None or not self._host_allowed(match[1].lower()):
            raise ApiError(400, "the Host header names another server; --allowed-hosts adds names", param="host")

    def _host_allowed(self, name: str) -> bool:
        allowed = self._settings.allowed_hosts
        if "*" in allowed or (not allowed and not self._settings.loopback):
            return True
        return name in allowed or _is_loopback(name)

    def _origin_allowed(self, origin: str, headers: Headers) -> bool:
        if "*" in self._settings.cors_origins or origin in self._settings.cors_origins:
            return True
        try:
            parts = urlsplit(origin)
            own = parts.netloc.lower() == headers.get("host", "").lower()
            return parts.scheme in ("http", "https") and (own or _is_loopback(parts.hostname or ""))
        except ValueError:
            return False

    def _needs_key(self, path: str) -> bool:
        if not self._settings.api_keys or path in _OPEN or path.startswith("/static/"):
            return False
        return path != "/metrics" or not self._settings.loopback

    def _check_key(self, headers: Headers) -> None:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        key = (given if scheme.lower() == "bearer" else headers.get("x-api-key", "")).strip().encode()
        # Every key is compared, so that the time taken reveals nothing.
        if not sum(hmac.compare_digest(key, known.encode()) for known in self._settings.api_keys):
            raise ApiError(
                401,
                "the API key is missing or wrong",
                kind="authentication_error",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )

    @staticmethod
    def _decorate(answer: MutableHeaders, origin: str | None, request_id: str, began: float) -> None:
        answer["x-request-id"] = request_id
        answer["openai-processing-ms"] = str(round(1e3 * (time.perf_counter() - began)))
        answer.setdefault("cache-control", "no-store")
        answer["x-content-type-options"] = "nosniff"
        answer.add_vary_header("Origin")
        if origin is not None:
            answer["access-control-allow-origin"] = origin
            answer["access-control-expose-headers"] = "x-request-id, retry-after, x-tools-not-enforced"


@lru_cache(64)
def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
