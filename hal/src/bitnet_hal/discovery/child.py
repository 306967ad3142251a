"""Child processes that each list the devices of one backend, so that a driver that hangs or crashes harms no other.

A child is a fork of this process (`Fork`, for the command line, before any thread starts) or a new interpreter
(`spawned`). Both write the line BEGUN, then one line of JSON, and exit.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from threading import Thread
from typing import Any, Protocol

import importlib_metadata

from bitnet_hal.device import DeviceInfo
from bitnet_hal.discovery.driver_cache import remember, remembered
from bitnet_hal.discovery.plain import to_plain
from bitnet_hal.hooks import ENTRY_POINT_GROUP
from bitnet_hal.isolation import IGNORED_AFTER, WARNED_AFTER

BEGUN = b"begun\n"
LONGEST = 16 << 20
"""Maximum bytes of an answer; a longer one is cut off and so counts as no answer."""
_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux; forks are used on Linux only (`listing`)."""
_ENDING = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}  # Windows has no SIGHUP

log = logging.getLogger(__name__)


class Process(Protocol):
    """The part of subprocess.Popen that a forked and a spawned process share."""

    def kill(self) -> None: ...

    def wait(self) -> int: ...


class Child:
    """The answer of one child process, read by a thread. pipe: the descriptor that it is read from."""

    def __init__(self, process: Process, pipe: int) -> None:
        self.process = process
        self.text = b""
        self._pipe = pipe
        self._reader = Thread(target=self._read, daemon=True)

    @property
    def answer(self) -> bytes:
        """The line of JSON, b"" until it is complete."""
        return self.text.removeprefix(BEGUN) if self.text.endswith(b"\n") and self.text != BEGUN else b""

    def start_reading(self) -> None:
        """Start the thread; call it after the last fork."""
        self._reader.start()

    def is_done(self, seconds: float) -> bool:
        """Wait at most `seconds` for the answer or the end of the process."""
        self._reader.join(max(0.0, seconds))
        return not self._reader.is_alive()

    def failure(self) -> str:
        """Return the reason why the child gave no answer, "" if it answered or never began to ask."""
        if self._reader.is_alive():
            return f"its driver does not answer within {IGNORED_AFTER:g} s"
        if self.answer or not self.text.startswith(BEGUN):  # an embedded interpreter may be another program
            return ""
        with suppress(OSError):  # Windows refuses to kill a process that is ending
            self.process.kill()
        return exit_reason(self.process.wait())

    def _read(self) -> None:
        while not self.answer and len(self.text) < LONGEST:
            part = os.read(self._pipe, 1 << 20)
            if not part:
                return
            self.text += part


def exit_reason(code: int) -> str:
    """Describe the end of a child that gave no answer; negative codes are signals."""
    with suppress(ValueError):
        return f"its driver ends the process that asks for its devices ({signal.Signals(-code).name})"
    return f"its driver ends the process that asks for its devices (code {code:#x})"


def wait_for(children: Mapping[str, Child]) -> dict[str, str]:
    """Wait for all children at once and return `Child.failure` of each. Slow drivers are named in the log."""
    began = time.monotonic()
    for child in children.values():
        child.start_reading()
    for name, child in children.items():
        if not child.is_done(began + WARNED_AFTER - time.monotonic()):
            log.warning("the driver of %s does not answer after %g s", name, WARNED_AFTER)
    for child in children.values():
        child.is_done(began + IGNORED_AFTER - time.monotonic())
    return {name: child.failure() for name, child in children.items()}


def unresponsive_drivers(backends: Mapping[str, str]) -> dict[str, str]:
    """Return the reason per driver that cannot be asked; drivers that answer are left out.

    backends: name (a key of KNOWN) -> version of the plugin.
    """
    found = remembered(backends)
    unknown = [name for name in backends if name not in found]
    if unknown:
        fresh = _ask(unknown)
        remember(fresh, backends)
        found |= fresh
    return {name: found[name] for name in backends if found[name]}


def _ask(names: Iterable[str]) -> dict[str, str]:
    """Spawn all children at once, so that the wait is that for the slowest one."""
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name in names:
            processes[name] = spawned(name)
        return wait_for({name: Child(process, _stdout(process)) for name, process in processes.items()})
    except (OSError, ValueError) as exc:  # a frozen program has no interpreter to start
        log.debug("drivers are asked in this process: %s", exc)
        return dict.fromkeys(names, "")
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()


def _stdout(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None  # it is a pipe
    return process.stdout.fileno()


def spawned(name: str, entry: str = "main") -> subprocess.Popen[bytes]:
    """Start an interpreter that lists the devices of a backend. entry: the function here that it calls.

    Raises OSError or ValueError if there is no interpreter to start.
    """
    program = f"import sys; sys.path[:0] = sys.argv[2:]; from bitnet_hal.discovery.child import {entry} as main; "
    program += "main(sys.argv[1])"
    folders = [folder for folder in sys.path if os.path.isabs(folder)]
    return subprocess.Popen(
        [sys.executable, "-c", program, name, *folders],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def main(name: str) -> None:
    """Run in the spawned interpreter: answer null once the driver of a backend has listed its devices."""

    def list_devices() -> None:
        with suppress(BaseException):  # the parent meets the same exception and reports it
            _listed(name)

    Thread(target=_end_with_parent, daemon=True).start()
    _respond(list_devices, os.dup(1))


def main_devices(name: str) -> None:
    """Run in the spawned interpreter: answer the devices of a backend as plain data, [] if its driver has none."""

    def list_devices() -> list[dict[str, Any]]:
        with suppress(Exception):
            return [to_plain(info) for info in _listed(name)]
        return []

    Thread(target=_end_with_parent, daemon=True).start()
    _respond(list_devices, os.dup(1))


def _listed(name: str) -> list[DeviceInfo]:
    entry = next(entry for entry in importlib_metadata.entry_points(group=ENTRY_POINT_GROUP) if entry.name == name)
    return list(entry.load().bitnet_backend().devices())


def _end_with_parent() -> None:
    sys.stdin.buffer.read()  # nothing is ever written to it: it closes when the parent ends, even if that is killed
    os._exit(0)


def _respond(ask: Callable[[], Any], pipe: int) -> None:
    """Write the result of `ask` to the pipe and end the process. Meanwhile its stdout is redirected to stderr."""
    try:
        os.write(pipe, BEGUN)
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        answer = json.dumps(ask()).encode() + b"\n"
        while answer:
            answer = answer[os.write(pipe, answer) :]
    finally:
        os._exit(1)


class Fork:
    """A fork of this process that runs one function and exits."""

    def __init__(self) -> None:
        self.pipe = -1
        self._pid = 0
        self._code = 0

    def begin(self, ask: Callable[[], Any]) -> None:
        """Fork, and run `ask` in the child. Raises OSError if the user may have no more processes."""
        self.pipe, answer = os.pipe()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # else the fork writes the buffered text again
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # until the fork has its own handlers
        try:
            self._pid = os.fork()
            if not self._pid:
                _respond_in_fork(ask, answer, blocked)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            os.close(answer)

    def kill(self) -> None:
        """Kill the process unless it was waited for."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for the process and return its exit code, the negated number of a signal."""
        if self._pid:
            status = os.waitpid(self._pid, 0)[1]
            self._pid = 0
            self._code = os.waitstatus_to_exitcode(status)
            os.close(self.pipe)
        return self._code


def _respond_in_fork(ask: Callable[[], Any], pipe: int, signals: Iterable[int]) -> None:
    """Give the fork default signal handlers and the signal mask `signals`, then respond."""

    def flushed() -> Any:
        result = ask()
        ctypes.CDLL(None).fflush(None)
        sys.stderr.flush()
        return result

    try:
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)  # a driver that hangs does not outlive the program
        for number in _ENDING:
            if callable(signal.getsignal(number)):  # else it is ignored, or ends the process already
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        _respond(flushed, pipe)
    finally:
        os._exit(1)
