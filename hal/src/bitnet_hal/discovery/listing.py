"""For lists of devices: each backend is asked in a process of its own, all at once.

Drivers share nothing there, and no module waits for another one's import. One that crashes takes only its own devices
with it. The processes are copies of this one; where those would not be sound, all are asked here (`Registry.look`).
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any

from bitnet_hal.device import DeviceInfo, DeviceType, TransferMode
from bitnet_hal.discovery.canary import ended, remember, remembered
from bitnet_hal.discovery.known import GPU_BACKENDS
from bitnet_hal.discovery.registry import Quarantine, Registry, Stage, registry
from bitnet_hal.errors import BackendIncompatibleError, BackendUnavailableError
from bitnet_hal.isolation import LEFT_OUT_AFTER, NAMED_AFTER

_ENDING = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}  # Windows has no SIGHUP

log = logging.getLogger(__name__)


@contextmanager
def asked_apart() -> Iterator[Callable[[], None]]:
    """Backends are asked from here on; what it gives waits for the answers, which the registry then has."""
    if not _copies_are_sound() or "BITNET_GPU_FAKE" in os.environ:  # which hides drivers
        yield lambda: None
        return
    import bitnet_hal.plugin  # noqa: F401 - most backends need it: once is enough

    found, copies = registry(), dict[str, _Copy]()
    versions = {name: found.origin(name)[1] for name in found.backends if name in GPU_BACKENDS}
    known = remembered(versions)
    try:
        for name in reversed(found.backends):  # webgpu takes the longest
            if known.get(name):
                continue
            copies[name] = _Copy()  # in time to be ended, whatever comes while it begins
            try:
                copies[name].begin(partial(_told, found, name))
            except OSError:  # this user may have no more processes: the rest is asked here
                del copies[name]
                break
        yield lambda: _learn(found, copies, versions, known)
    finally:
        for copy in copies.values():
            copy.end()


def _copies_are_sound() -> bool:
    """Whether a copy of this process would work: one thread, and nothing that has threads or drivers of its own.
    Frameworks of macOS do not work in copies."""
    return sys.platform == "linux" and threading.active_count() == 1 and "numpy" not in sys.modules


class _Copy:
    """A copy of this process, which answers by a line of JSON and ends."""

    def __init__(self) -> None:
        self.text = b""
        self._process = self._code = 0

    def begin(self, ask: Callable[[], Any]) -> None:
        """OSError where there can be no more processes."""
        self.pipe, answer = os.pipe()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # or it is written twice
        held = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # until the copy has handlers of its own
        try:
            self._process = os.fork()
            if not self._process:
                _answer(ask, answer, held)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
            os.close(answer)

    def read(self) -> bool:
        """Read what is there, and tell whether that is all."""
        part = os.read(self.pipe, 1 << 20)
        self.text += part
        return not part or self.answered

    @property
    def answered(self) -> bool:
        return self.text.endswith(b"\n")

    def end(self) -> int:
        """How it ended (`canary.ended`). It is killed where it has not."""
        if self._process:
            os.close(self.pipe)
            os.kill(self._process, signal.SIGKILL)
            self._code, self._process = os.waitstatus_to_exitcode(os.waitpid(self._process, 0)[1]), 0
        return self._code


def _answer(ask: Callable[[], Any], pipe: int, signals: Iterable[int]) -> None:
    """In the copy. Nothing of what this process was doing goes on in it. signals: that are held back as a rule."""
    try:
        for number in _ENDING:
            if callable(signal.getsignal(number)):  # else it is ignored, or ends the process as it is
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        os.dup2(2, 1)  # stdout belongs to the command's result
        sys.stdout = sys.stderr
        answer = json.dumps(ask()).encode() + b"\n"
        ctypes.CDLL(None).fflush(None)
        sys.stderr.flush()
        while answer:
            answer = answer[os.write(pipe, answer) :]
    finally:
        os._exit(1)


def _told(found: Registry, name: str) -> dict[str, Any]:
    """In the copy: what a backend lists, and what is left out of it, as plain data."""
    before = len(found.quarantined)
    devices = found.probed(name, in_time=False)
    left_out = [(one.stage.value, one.reason, one.fix) for one in found.quarantined[before:]]
    return {"devices": [_plain(info) for info in devices], "left_out": left_out}


def _plain(info: DeviceInfo) -> dict[str, Any]:
    named = {field.name: getattr(info, field.name) for field in fields(info)}
    sets = {"kernels": sorted(info.kernels), "features": sorted(info.features)}
    return {**named, **sets, "type": info.type.value, "transfer": info.transfer.value, "extra": dict(info.extra)}


def _info(plain: dict[str, Any]) -> DeviceInfo:
    sets = {name: frozenset(plain[name]) for name in ("kernels", "features")}
    enums = {"type": DeviceType(plain["type"]), "transfer": TransferMode(plain["transfer"])}
    return DeviceInfo(**{**plain, **sets, **enums, "max_grid": tuple(plain["max_grid"])})


def _learn(found: Registry, copies: dict[str, _Copy], versions: dict[str, str], known: dict[str, str]) -> None:
    reasons = known | _waited(copies)
    for name in [name for name in found.backends if reasons.get(name)]:
        log.warning("%s is ignored: %s", name, reasons[name])
        found.add_result(name)
        found.silent(name, reasons[name])
    for name in [name for name in found.backends if name in copies and copies[name].answered]:
        told, left_out = json.loads(copies[name].text), []
        for stage, reason, fix in told["left_out"]:
            kind = BackendUnavailableError if Stage(stage) is Stage.DRIVER else BackendIncompatibleError
            error = kind(reason, backend=name, hint=fix)
            left_out.append(Quarantine(name, *found.origin(name), Stage(stage), error))
        found.add_result(name, map(_info, told["devices"]), left_out)
    if news := {name: reasons[name] for name in copies if name in versions and reasons[name] != known.get(name)}:
        remember(news, versions)


def _waited(copies: dict[str, _Copy]) -> dict[str, str]:
    """Why those copies that did not answer did not, "" for the others."""
    waiting, reasons = {copy.pipe: name for name, copy in copies.items()}, dict[str, str]()
    began = time.monotonic()
    for seconds in (NAMED_AFTER, LEFT_OUT_AFTER):
        while ready := waiting and select.select(waiting, (), (), max(0, began + seconds - time.monotonic()))[0]:
            for pipe in ready:
                name = waiting[pipe]
                if copies[name].read():
                    reasons[name] = "" if copies[name].answered else ended(copies[name].end())
                    del waiting[pipe]
        if seconds == NAMED_AFTER:
            for name in waiting.values():
                log.warning("the driver of %s does not answer after %g s", name, seconds)
    return reasons | dict.fromkeys(waiting.values(), f"its driver does not answer within {LEFT_OUT_AFTER:g} s")
