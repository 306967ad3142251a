"""Errors in the form of OpenAI's API."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

from bitnet_core.errors import TokenizerError
from bitnet_hal.errors import BitnetError, DeviceLostError, OutOfMemoryError, UsageError

log = logging.getLogger(__name__)

_LISTED = 20  # most names in an error


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

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the function and arguments with which another process builds the error."""
        return _again, (self.status, self.message, self.kind, self.param, self.code, self.headers)

    def document(self) -> dict[str, Any]:
        """Return the error object."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def _again(
    status: int, message: str, kind: str, param: str | None, code: str | None, headers: dict[str, str]
) -> ApiError:
    return ApiError(status, message, kind=kind, param=param, code=code, headers=headers)


def unavailable(message: str, retry_after: int = 1, *, again: bool = True) -> ApiError:
    """Build a 503. again: this server can answer later."""
    headers = {"retry-after": str(retry_after)} | ({} if again else {"x-should-retry": "false"})
    return ApiError(503, message, kind="service_unavailable", code="unavailable", headers=headers)


def queue_full(retry_after: int) -> ApiError:
    """Build a 429 for a full queue."""
    headers = {"retry-after": str(retry_after)}
    return ApiError(429, "the queue is full", kind="rate_limit_error", code="queue_full", headers=headers)


def no_model(name: str, known: Sequence[str]) -> ApiError:
    """Build the 404 for a name that no model has."""
    more = "" if len(known) <= _LISTED else f" and {len(known) - _LISTED} more"
    text = f"there is no model {name[:200]!r} here; there is {', '.join(known[:_LISTED])}{more}"
    return ApiError(404, text, param="model", code="model_not_found")


def not_loaded(names: Sequence[str], error: Exception) -> ApiError:
    """Build the error of a request whose model could not be loaded, without details of the failure."""
    name = names[0] if names else "the model"
    log.error("%s could not be loaded: %s", name, error)
    if isinstance(error, OutOfMemoryError):
        return unavailable(f"there is not enough memory to load {name}", 30, again=False)
    text = f"{name} could not be loaded; the server's log says why"
    return ApiError(500, text, kind="server_error", code="model_not_loaded", headers={"x-should-retry": "false"})


def internal() -> ApiError:
    """Build a 500 without details of the failure."""
    return ApiError(
        500, "the server failed; its log says why", kind="server_error", headers={"x-should-retry": "false"}
    )


def too_long(limit: int, reason: str) -> ApiError:
    """Build the 400 of a prompt that is too long, in the words by which clients recognise it (litellm among them)."""
    text = f"This model's maximum context length is {limit} tokens: {reason}"
    return ApiError(400, text, code="context_length_exceeded")


def from_engine(error: Exception) -> ApiError:
    """Convert an error of a generation to an error response."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UsageError):
        limit = re.search(r"context holds (\d+)", str(error))
        return too_long(int(limit[1]), str(error)) if limit else ApiError(400, str(error))
    if isinstance(error, TokenizerError):
        return ApiError(400, f"the messages cannot be rendered: {error}", param="messages")
    if isinstance(error, DeviceLostError):
        return unavailable("the device is lost", 5, again=False)
    if isinstance(error, BitnetError) and "closed" in str(error):
        return unavailable("the server is shutting down", 5, again=False)
    log.error("a request failed", exc_info=error)
    return internal()
