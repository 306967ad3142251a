"""Bounds on the answers of a hub: bytes, seconds, and the names that become paths."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Final

from bitnet_hal.errors import short

from bitnet_core.errors import ModelError
from bitnet_core.units import size

ANSWER_BYTES: Final = 8 << 20
"""Maximum bytes of a repository's description; that of 10,000 files takes 4 MB."""
OTHER_BYTES: Final = 1 << 20
"""Maximum bytes of the body of an error or a redirection."""
HEAD_SECONDS: Final = 60.0
"""Time limit in seconds for the head of an answer."""
WINDOW_SECONDS: Final = 30.0
WINDOW_BYTES: Final = 30 << 10
"""Minimum bytes per window; a slower answer may never end."""
LONGEST_NAME: Final = 1024

_HASHES: Final = {
    "ETag": re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,127}"),
    "X-Linked-Etag": re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,127}"),
    "X-Repo-Commit": re.compile(r"[0-9a-f]{40}"),
}
"""Patterns of the headers that huggingface_hub turns into file names; values that match stay inside its folder."""


class Bounds:
    """Bounds on every answer of the hub. file: maximum bytes of the next file, None if no file is expected.

    broken: called with an error that cannot be raised, because the program waits for the head of an answer.
    """

    def __init__(self, broken: Callable[[ModelError], None]) -> None:
        self.file: int | None = None
        self._waiting_since: float | None = None
        self._broken = broken

    def install(self, hub: Any) -> None:
        """Make huggingface_hub use a client with these bounds, in the whole process."""
        session = hub.get_session()
        kind = type(session)
        hooks = {"request": [*session.event_hooks["request"], self._ask], "response": [self._check]}
        self._stream = _bounded_stream(import_module(kind.__module__.partition(".")[0]))
        hub.set_client_factory(lambda: kind(event_hooks=hooks, follow_redirects=True, timeout=None))
        threading.Thread(target=self._watch, name="bitnet-hub-watch", daemon=True).start()

    def _ask(self, request: Any) -> None:
        """Request uncompressed bytes, because compressed ones may unpack to any size."""
        request.headers["Accept-Encoding"] = "identity"
        self._waiting_since = time.monotonic()

    def _check(self, response: Any) -> None:
        """Raise ModelError for an answer that breaks the bounds; bound its body."""
        self._waiting_since = None
        headers = response.headers
        if response.request.method == "HEAD":
            _check_hashes(headers)
        scheme, colon, _ = headers.get("Location", "").partition("://")
        if colon and scheme.lower() not in ("http", "https"):
            raise ModelError(f"the hub redirects to {short(headers['Location'])}, which is not an http(s) address")
        if headers.get("Content-Encoding", "identity").lower() != "identity":
            raise ModelError("the hub compresses its answer, although an uncompressed one was requested")
        most = OTHER_BYTES
        if response.status_code in (200, 206):
            most = ANSWER_BYTES if self.file is None else self.file
        announced = headers.get("Content-Length", "")
        if response.request.method != "HEAD" and announced.isdecimal() and int(announced[:20]) > most:
            raise _too_long(most)
        response.stream = self._stream(response.stream, most)

    def _watch(self) -> None:
        while True:
            time.sleep(0.5)
            since = self._waiting_since
            if since is not None and time.monotonic() - since > HEAD_SECONDS:
                self._broken(ModelError(f"the hub did not begin its answer within {HEAD_SECONDS:g} s; try again later"))


def shown(name: object) -> bool:
    """Return whether a file name is printable text of a reasonable length; bitnet ignores other files."""
    return isinstance(name, str) and name.isprintable() and 0 < len(name) <= LONGEST_NAME


def _check_hashes(headers: Any) -> None:
    for name, pattern in _HASHES.items():
        value = headers.get(name)
        if value is not None and not pattern.fullmatch(value.lstrip("W/").strip('"')):  # as huggingface_hub parses it
            raise ModelError(f"the hub's {name} is {short(value)}, not a hash; nothing was fetched")


def _too_long(most: int) -> ModelError:
    return ModelError(f"the hub sends more than the {size(most)} that are expected; nothing was kept")


def _bounded_stream(library: Any) -> Callable[[Any, int], Any]:
    """Return a class of byte streams of the HTTP library (httpx or its successor) that raise ModelError for too many
    bytes or a too slow answer."""

    class BoundedStream(library.SyncByteStream):  # type: ignore[misc]  # the library is known when it runs
        def __init__(self, inner: Any, most: int) -> None:
            self._inner = inner
            self._most = most

        def __iter__(self) -> Iterator[bytes]:
            total = 0
            began, in_window = time.monotonic(), 0
            for part in self._inner:
                total += len(part)
                in_window += len(part)
                if total > self._most:
                    raise _too_long(self._most)
                if time.monotonic() - began > WINDOW_SECONDS:
                    if in_window < WINDOW_BYTES:
                        raise ModelError(f"the hub sends fewer than {size(WINDOW_BYTES)} in {WINDOW_SECONDS:g} s")
                    began, in_window = time.monotonic(), 0
                yield part

        def close(self) -> None:
            self._inner.close()

    return BoundedStream
