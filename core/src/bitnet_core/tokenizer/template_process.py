"""A child process for a model's chat template: untrusted code, limited in time and memory from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from bitnet_hal.errors import UsageError

from bitnet_core.errors import TokenizerError

SECONDS: Final = 2
"""Limit of one rendering, parsing included."""

MEMORY: Final = 256 << 20
"""Limit of a rendering's memory, in bytes. Linux enforces it (RLIMIT_AS); elsewhere the process is checked 50 times a
second and may exceed it between two checks."""

MAX_TEXT: Final = 1 << 22
"""Limit of a rendered conversation, in characters."""

_START_SECONDS: Final = 30.0
_TICK: Final = 0.02
_LONGEST_LINE: Final = 12 * MAX_TEXT + 100  # JSON escapes a character as \\uXXXX\\uXXXX at most
_CHILD: Final = Path(__file__).with_name("sandbox.py")
_KEPT_VARIABLES: Final = ("TZ", "SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


class TemplateProcess:
    """The child process that renders the chat template of one model; started at the first use and kept. Safe to use
    from several threads."""

    def __init__(self, source: str) -> None:
        """Store the template's text; the process is started later."""
        self._source = source
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = lambda: None
        self._owner = os.getpid()

    def parse(self) -> None:
        """Raise TokenizerError unless the template parses within the limits."""
        answer = self._ask({"source": self._source})
        if "text" not in answer:
            raise TokenizerError(f"the chat template of the model does not parse: {answer['failed']}")

    def render(self, variables: Mapping[str, Any], source: str | None = None) -> str:
        """Return the text for these variables. source: another template of the model.

        Raises UsageError if JSON cannot represent them, or if the template rejects them (raise_exception);
        TokenizerError if it fails or exceeds the limits.
        """
        answer = self._ask({"source": source or self._source, "variables": variables})
        if "refused" in answer:
            raise UsageError(f"the model's chat template rejects these messages: {answer['refused']}")
        if "failed" in answer:
            raise TokenizerError(f"the chat template of the model fails: {answer['failed']}")
        return answer["text"]

    def close(self) -> None:
        """End the process; a later use starts a new one."""
        with self._lock:
            self._drop()

    def _ask(self, request: Mapping[str, Any]) -> dict[str, str]:
        try:
            line = json.dumps(request).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as exc:
            raise UsageError(f"the messages hold a value that a chat template cannot take: {exc}") from exc
        if len(line) > _LONGEST_LINE:
            raise UsageError(f"the messages are longer than the limit of {MAX_TEXT} characters for a conversation")
        with self._lock:
            process = self._running()
            try:
                with _watched(process, SECONDS) as broken:
                    raw = _exchange(process, line)
                answer = _checked(raw, broken)
            except BaseException:  # an interrupt too leaves the process in the middle of a request
                self._drop()
                raise
            if "failed" in answer:
                self._drop()  # so that nothing of a failed template stays in memory
            return answer

    def _running(self) -> subprocess.Popen[bytes]:
        process = self._process
        if process is None or process.poll() is not None or self._owner != os.getpid():
            self._drop()
            self._owner = os.getpid()  # after a fork the process belongs to the parent
            self._process = process = _started()
            self._end = weakref.finalize(self, _end, process)
        return process

    def _drop(self) -> None:
        if self._owner == os.getpid():
            self._end()
        self._process = None


def _started() -> subprocess.Popen[bytes]:
    limits = [str(limit) for limit in (MEMORY, SECONDS, MAX_TEXT)]
    folders = [folder for folder in sys.path if os.path.isabs(folder)]
    environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", "-c", _START, str(_CHILD), *limits, *folders],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=os.path.abspath(os.sep),
        )
    except (OSError, ValueError) as exc:
        raise TokenizerError(f"the process for the chat template cannot be started ({sys.executable}): {exc}") from exc
    assert process.stdout is not None
    with _watched(process, _START_SECONDS):
        ready = process.stdout.readline(100)
    if ready.strip() != b"ready":
        _end(process)
        raise TokenizerError(f"the process for the chat template does not start: {sys.executable} -c ... {_CHILD}")
    return process


_START: Final = (
    "import sys, runpy; child, *limits = sys.argv[1:5]; sys.path[:0] = sys.argv[5:]; "
    "sys.argv[1:] = limits; runpy.run_path(child, run_name='__main__')"
)
"""The child's bootstrap: isolated (-I -S), with the package paths of this process."""


def _exchange(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(OSError):  # the process ended: the empty answer reports it
        process.stdin.write(line)
        process.stdin.flush()
        return process.stdout.readline(_LONGEST_LINE)
    return b""


def _checked(raw: bytes, broken: list[str]) -> dict[str, str]:
    """Return the answer, or raise the error for its absence; the template may have forged the answer, so it is
    checked."""
    if broken:
        raise TokenizerError(f"the chat template of the model is stopped: {broken[0]}")
    try:
        answer = json.loads(raw)
    except ValueError:
        answer = None
    if isinstance(answer, dict) and len(answer) == 1:
        kind, text = next(iter(answer.items()))
        if isinstance(text, str) and (kind == "text" or kind in ("refused", "failed")):
            return {kind: text}
    raise TokenizerError("the chat template of the model ended the process that renders it")


@contextmanager
def _watched(process: subprocess.Popen[bytes], seconds: float) -> Iterator[list[str]]:
    """Kill the process if it exceeds its time or memory; the yielded list then holds the reason."""
    broken: list[str] = []
    done = threading.Event()
    end = time.monotonic() + seconds

    def watch() -> None:
        while not done.wait(_TICK):
            if time.monotonic() > end:
                broken.append(f"it does not finish within {seconds} s")
            elif _resident(process.pid) > MEMORY:
                broken.append(f"it takes more than {MEMORY >> 20} MiB of memory")
            else:
                continue
            process.kill()
            return

    watcher = threading.Thread(target=watch, name="bitnet-template-watch", daemon=True)
    watcher.start()
    try:
        yield broken
    finally:
        done.set()
        watcher.join()


def _resident(pid: int) -> int:
    import psutil  # imported late, because it would delay the first text

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()
