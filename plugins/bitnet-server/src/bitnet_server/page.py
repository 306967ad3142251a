"""The chat page: files of this package, read once; no path of a request ever reaches the file system."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from bitnet_server.errors import ApiError

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}


@cache
def contents() -> dict[str, bytes]:
    """Every file of the page by its name."""
    folder = files("bitnet_server") / "static"
    return {item.name: item.read_bytes() for item in folder.iterdir() if "." + item.name.rpartition(".")[2] in _TYPES}


async def index(request: Request) -> Response:
    """GET /"""
    return _file("index.html")


async def static(request: Request) -> Response:
    """GET /static/NAME"""
    return _file(request.path_params["name"])


def _file(name: str) -> Response:
    content = contents().get(name)
    if content is None:
        raise ApiError(404, "there is no such file", code="unknown_url")
    return Response(content, headers={"content-type": _TYPES["." + name.rpartition(".")[2]], **_HEADERS})
