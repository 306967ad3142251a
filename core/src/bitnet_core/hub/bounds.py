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
"""Largest description of a repository: 10,000 files take 4 MB."""
OTHER_BYTES: Final = 1 << 20
"""Largest body of an error or a redirection."""
HEAD_SECONDS: Final = 60.0
"""Seconds for the head of an answer."""
WINDOW_SECONDS: Final = 30.0
WINDOW_BYTES: Final = 30 << 10
"""Fewer bytes than these in a window are a trickle, which may never end."""
LONGEST_NAME: Final = 1024

_HASHES: Final = {
    "ETag": re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,127}"),
    "X-Linked-Etag": re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,127}"),
    "X-Repo-Commit": re.compile(r"[0-9a-f]{40}"),
}
"""Headers of which huggingface_hub makes names of files, by the values that stay in their folder."""


class Bounds:
    """Bounds on every answer of the hub. file: bytes that the next file may have, None while there is none.

    broken: called with an error that cannot be raised where it arises: a server that never ends the head of an answer.
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
        """Ask for bytes as they are: compressed ones may unpack to any size."""
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
            raise ModelError(f"the hub redirects to {short(headers['Location'])}, which is not an address of the web")
        if headers.get("Content-Encoding", "identity").lower() != "identity":
            raise ModelError("the hub compresses its answer, which was asked for as it is")
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
    """Return whether a name of a file is printable text of a sane length; bitnet ignores other files."""
    return isinstance(name, str) and name.isprintable() and 0 < len(name) <= LONGEST_NAME


def _check_hashes(headers: Any) -> None:
    for name, pattern in _HASHES.items():
        value = headers.get(name)
        if value is not None and not pattern.fullmatch(value.lstrip("W/").strip('"')):  # as huggingface_hub reads it
            raise ModelError(f"the hub's {name} is {short(value)}, not a hash; nothing was fetched")


def _too_long(most: int) -> ModelError:
    return ModelError(f"the hub sends more than the {size(most)} that are expected; nothing was kept")


def _bounded_stream(library: Any) -> Callable[[Any, int], Any]:
    """Return a class of byte streams of the HTTP library (httpx or its successor) that raise ModelError for too many
    bytes or a trickle."""

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
