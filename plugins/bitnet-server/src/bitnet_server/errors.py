"""Errors in the form of OpenAI's API."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from bitnet_hal.errors import BitnetError, DeviceLostError, UsageError
from starlette.responses import Response

log = logging.getLogger(__name__)


class ApiError(Exception):
    """An error response: {"error": {"message", "type", "param", "code"}} with a status; headers are added to it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.param, self.code = status, message, kind, param, code
        self.headers = headers or {}

    def document(self) -> dict[str, Any]:
        """Return the error object."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """Build the response."""
        return Response(msgspec.json.encode(self.document()), self.status, self.headers, "application/json")


def unavailable(message: str, retry_after: int = 1, *, again: bool = True) -> ApiError:
    """Build a 503. again: this server can answer later."""
    headers = {"retry-after": str(retry_after)} | ({} if again else {"x-should-retry": "false"})
    return ApiError(503, message, kind="service_unavailable", code="unavailable", headers=headers)


def internal() -> ApiError:
    """Build a 500 without details of the failure."""
    return ApiError(
        500, "the server failed; its log says why", kind="server_error", headers={"x-should-retry": "false"}
    )


def from_engine(error: Exception) -> ApiError:
    """Convert an error of a generation to an error response."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UsageError):
        code = "context_length_exceeded" if "context holds" in str(error) else None
        return ApiError(400, str(error), code=code)
    if isinstance(error, DeviceLostError):
        return unavailable("the device is lost", 5, again=False)
    if isinstance(error, BitnetError) and "closed" in str(error):
        return unavailable("the server is shutting down", 5, again=False)
    log.error("a request failed", exc_info=error)
    return internal()
