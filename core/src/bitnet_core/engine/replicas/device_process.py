"""The server's side of a device that another process has opened."""

from __future__ import annotations

import itertools
import logging
import signal
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock, Thread
from typing import IO, TYPE_CHECKING, Any, Protocol

from bitnet_hal.errors import BitnetError, DeviceLostError

from bitnet_core.engine.replicas.messages import Channel, log_levels
from bitnet_core.engine.replicas.spawning import spawned
from bitnet_core.progress import Progress

if TYPE_CHECKING:
    from bitnet_hal.device import DeviceInfo

    from bitnet_core.engine.replicas.worker_process import OpenDevice

log = logging.getLogger(__name__)

_CLOSING_SECONDS = 10.0
"""Seconds in which a process may close its device."""


class OtherProcess(Protocol):
    """The methods of subprocess.Popen that are used here."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None
    pid: int

    def kill(self) -> None: ...

    def wait(self) -> int: ...


class DeviceProcess:
    """A device and its process. own_request: the device request in that process. timeout: seconds that a wait in the
    current step may take. beside: called with the messages that do not come from the engine.

    receive: called with every message that is not an answer to `call`, and with None when the process ends; progress:
    called with the progress of loading. Both are called in a thread of this object.
    """

    def __init__(
        self,
        open_device: OpenDevice,
        known: DeviceInfo | None = None,
        process: OtherProcess | None = None,
    ) -> None:
        """Open the device in the process `spawned`, or in a new one. known: its earlier description, to find the device
        if its index has changed. Raises the errors of `open_device`, and BitnetError if no process can be started."""
        self.receive: Callable[[tuple[Any, ...] | None], None] = lambda message: None
        self.beside: Callable[..., None] = lambda *message: None
        self.progress: Progress | None = None
        self.ended: DeviceLostError | None = None
        self._info: DeviceInfo | None = None
        self.timeout = 0.0
        self._numbers = itertools.count()
        self._answers: dict[int, Future[Any]] = {}
        self._lock = Lock()
        self._process: OtherProcess = process or spawned()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._channel = Channel(self._process.stdout, self._process.stdin)
        Thread(target=self._read, name="device-process", daemon=True).start()
        try:
            opened, self.timeout = self.call("open", open_device, log_levels())
            self._info, self.own_request = known or opened, opened.request
        except BaseException:
            self.kill()
            raise

    @property
    def info(self) -> DeviceInfo:
        """The description of the device."""
        assert self._info is not None  # it is open
        return self._info

    def moved(self, info: DeviceInfo) -> None:
        """Store the description of the device that the process has changed to."""
        self._info, self.own_request = info, info.request

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def call(self, kind: str, *arguments: Any) -> Any:
        """Run a command in the process and return its result. Raises the command's error, and DeviceLostError if the
        process ends."""
        future: Future[Any] = Future()
        number = next(self._numbers)
        with self._lock:
            if self.ended is not None:
                raise self.ended
            self._answers[number] = future
        self._send(kind, number, *arguments)
        return future.result()

    def tell(self, kind: str, *arguments: Any) -> None:
        """Send a command without a result to the process; does nothing if that has ended."""
        self._send(kind, None, *arguments)

    def free_memory(self) -> int:
        """See Device; only before the model is opened."""
        return int(self.call("free"))

    def close(self) -> None:
        """Close model and device, and end the process; may be called twice."""
        if self.ended is None:
            closing = Thread(target=self._close, name="closing", daemon=True)
            closing.start()
            closing.join(_CLOSING_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()

    def _close(self) -> None:
        with suppress(BitnetError):
            self.call("close")
        self._process.wait()

    def _send(self, kind: str, *arguments: Any) -> None:
        with suppress(OSError, ValueError):  # the reader notes that the process has ended
            self._channel.send((kind, *arguments))

    def _read(self) -> None:
        try:
            while (message := self._channel.receive()) is not None:
                self._take(message)
        except Exception:
            log.debug("the process of a device sent an invalid message", exc_info=True)
            self._process.kill()
        error = _end_of(self._process.wait(), self._info)
        with self._lock:
            self.ended = error
            left = list(self._answers.values())
            self._answers.clear()
        for future in left:
            future.set_exception(error)
        self._channel.close()
        self.receive(None)

    def _take(self, message: tuple[Any, ...]) -> None:
        kind, *rest = message
        if kind in ("answer", "refused"):
            number, result = rest
            future = self._answers.pop(number, None)
            if future is not None:
                (future.set_result if kind == "answer" else future.set_exception)(result)
        elif kind == "timeout":
            (self.timeout,) = rest
        elif kind == "progress":
            if self.progress is not None:
                self.progress(*rest)
        elif kind == "beside":
            self.beside(*rest)
        elif kind == "log":
            name, level, text = rest
            logging.getLogger(name).log(level, "%s", text)
        else:
            self.receive(message)


def _end_of(code: int, info: DeviceInfo | None) -> DeviceLostError:
    """Return the error for a process that ended. code: its exit status; a negative one is a signal."""
    end = f"code {code:#x}"
    with suppress(ValueError):
        end = signal.Signals(-code).name
    backend, name = ("", "") if info is None else (info.backend, info.name)
    return DeviceLostError(f"the process of the device has ended ({end})", backend=backend, device=name)
