"""The chat page: files of this package, read once, so that no request's path reaches the file system."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec
from bitnet_core.options.fields import DeclaredOption, options_of
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from bitnet_server.errors import ApiError
from bitnet_server.schema import NUMBERS, request_range
from bitnet_server.settings import Settings

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
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
    """Return every file of the page by its path; options.json has the numbers of the settings dialog."""
    return dict(_files(files("bitnet_server") / "static", "")) | {"options.json": msgspec.json.encode(_settings())}


def _files(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for item in folder.iterdir():
        if item.is_dir():
            yield from _files(item, f"{prefix}{item.name}/")
        elif _suffix(item.name) in _TYPES:
            yield prefix + item.name, item.read_bytes()


def _suffix(name: str) -> str:
    return "." + name.rpartition(".")[2]


@cache
def _etag(name: str) -> str:
    return f'"{hashlib.sha256(contents()[name]).hexdigest()[:32]}"'


def _settings() -> list[dict[str, object]]:
    """Return name, label, help, range and step of each number that a request takes."""
    rows = [_row(one, request_range(one)) for one in NUMBERS.values() if one.name != "seed"]
    rows.append(_row(options_of(Settings)["max_tokens"], Meta(ge=1)))
    return [*rows, _row(NUMBERS["seed"], Meta(ge=0, le=1 << 31))]


def _row(one: DeclaredOption, limits: Meta) -> dict[str, object]:
    return {
        "name": one.name,
        "label": one.name.replace("_", " ").capitalize(),
        "help": one.option.help.partition(" Default:")[0],
        "min": limits.ge,
        "max": limits.le,
        "step": 1 if one.plain is int else 0.01,
    }


async def index(request: Request) -> Response:
    """Return the page."""
    return _file(request, "index.html")


async def static(request: Request) -> Response:
    """Return a file of the page."""
    return _file(request, request.path_params["name"])


def _file(request: Request, name: str) -> Response:
    content = contents().get(name)
    if content is None:
        raise ApiError(404, "there is no such file", code="unknown_url")
    headers = {"content-type": _TYPES[_suffix(name)], "etag": _etag(name), **_HEADERS}
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers)
