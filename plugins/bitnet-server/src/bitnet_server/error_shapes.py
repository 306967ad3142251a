"""The error objects of the APIs: OpenAI's, Anthropic's under /v1/messages, Ollama's under /api."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Scope

from bitnet_server.errors import ApiError

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}
"""HTTP status -> error type, by Anthropic's page on errors; every other status is an invalid request."""


def anthropic_error(error: ApiError) -> dict[str, Any]:
    """Return the error object of Anthropic's API."""
    kind = _ANTHROPIC_TYPES.get(error.status, "invalid_request_error")
    message = _naming(error)
    if error.code == "context_length_exceeded":
        message = f"prompt is too long: {message}"  # Claude Code looks for these words, and then shortens its history
    return {"type": "error", "error": {"type": kind, "message": message}}


def error_response(error: ApiError, scope: Scope) -> Response:
    """Build an error response in the form of the API that the path belongs to.

    scope["error_reason"] becomes its code, which the middleware counts.
    """
    path = scope["path"]
    scope["error_reason"] = error.code or error.kind
    if path.startswith("/v1/messages"):
        document = anthropic_error(error)
    elif path.startswith("/api/"):
        document = {"error": _naming(error)}
    else:
        document = error.document()
    return Response(msgspec.json.encode(document), error.status, error.headers, "application/json")


def _naming(error: ApiError) -> str:
    """Return the message of an error with the field, for which the object has no entry of its own."""
    named = error.param is None or error.param.casefold() in error.message.casefold()
    return error.message if named else f"{error.param}: {error.message}"
