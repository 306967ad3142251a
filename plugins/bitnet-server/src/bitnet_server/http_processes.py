"""The server's further HTTP processes, seen from the first one: one event loop does not keep a GPU busy if requests are
many."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp

from bitnet_server.metrics import Samples
from bitnet_server.models import Models
from bitnet_server.relay import Answers
from bitnet_server.shared_counts import ROWS

if TYPE_CHECKING:
    from bitnet_server.run import Server
    from bitnet_server.service import Service

log = logging.getLogger(__name__)

_FOR_EACH_GPU = 2
"""HTTP processes for each GPU: of many requests at once, the GPU gets the last one after all are read and made tokens
of."""

_LEAST = 4
"""HTTP processes if fewer GPUs would have fewer."""

_MANY = 16
"""Active requests from which a server with one GPU gets them: to read so many takes as long as several steps."""

_CORES = 4
"""Processor cores for each HTTP process; with fewer it would only take time from the others."""

_BURST = 100
"""Connections that are accepted before the event loop does other work."""

_PAUSE = 1.0
"""Seconds without accepting after the system refused it: too many files are open."""

_STOP_SECONDS = 10.0
"""Seconds in which a process may end its connections."""

_METRICS_SECONDS = 1.0
"""Seconds for which a scrape waits for the numbers of another process."""


class FurtherProcess:
    """An HTTP process; used on the event loop only, but for the thread that reads its messages.

    row: see SharedCounts. begun: called once it serves connections. ready: it does. ended: done when it has ended.
    last: its metrics when it told them last.
    """

    def __init__(self, row: int, service: Service, app: ASGIApp, begun: Callable[[], None]) -> None:
        """Start the process. Raises BitnetError if it cannot be started."""
        from bitnet_core.engine.replicas.messages import Channel, log_levels
        from bitnet_core.engine.replicas.queue_user import QueueUser
        from bitnet_core.engine.replicas.spawning import spawned

        from bitnet_server.http_process import Setup

        self.row = row
        self._counts = counts = service.counts
        self._connections, theirs = socket.socketpair()
        self._connections.setblocking(False)
        with theirs:
            self._process = spawned("bitnet_server.http_process", [counts.descriptor, theirs.fileno()])
            opener = service.model.engine.opener  # type: ignore[attr-defined]  # a RemoteEngine
            numbers = counts.descriptor, row, theirs.fileno()
            setup = Setup(service.settings, service.names, opener, *numbers, log_levels())
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._channel = Channel(self._process.stdout, self._process.stdin)
        self._user = QueueUser(service.shared, service.replicas, self._channel)
        self._answers = Answers(app, self.tell)
        self._loop = asyncio.get_running_loop()
        self._begun = begun
        self.ready = False
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.last: Samples = []
        self._scrapes: dict[int, asyncio.Future[Samples]] = {}
        self._numbers = itertools.count()
        self._send((setup,))
        Thread(target=self._read, name="http-process", daemon=True).start()

    def tell(self, kind: str, *arguments: object) -> None:
        """Send a message beside those of the queue; if the process has ended, nothing happens."""
        self._send(("beside", kind, *arguments))

    def _send(self, message: tuple[object, ...]) -> None:
        with suppress(OSError, ValueError):  # the reader notes that the process has ended
            self._channel.send(message)

    def give(self, connection: socket.socket) -> bool:
        """Let the process serve a connection, which is closed here; False if it cannot."""
        try:
            socket.send_fds(self._connections, [b"c"], [connection.fileno()])
        except OSError:
            return False
        connection.close()
        return True

    async def samples(self) -> Samples:
        """Return the numbers for a scrape; none if the process does not answer."""
        number = next(self._numbers)
        future: asyncio.Future[Samples] = self._loop.create_future()
        self._scrapes[number] = future
        self.tell("metrics", number)
        try:
            async with asyncio.timeout(_METRICS_SECONDS):
                return await future
        except TimeoutError:
            return self.last
        finally:
            del self._scrapes[number]

    async def stop(self) -> None:
        """End the process, which ends its connections first."""
        self.ready = False
        self.tell("stop")
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await asyncio.shield(self.ended)
        self._process.kill()
        await asyncio.shield(self.ended)

    # In the thread of its messages.

    def _read(self) -> None:
        try:
            while (message := self._channel.receive()) is not None:
                self._take(*message)
        except Exception:
            log.debug("an HTTP process sent an invalid message", exc_info=True)
        self._process.kill()
        self._process.wait()
        self._user.close()
        self._counts.clear_active(self.row)
        self._channel.close()
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._end)

    def _take(self, kind: str, number: int | None, *arguments: Any) -> None:
        if kind == "beside":
            self._loop.call_soon_threadsafe(self._take_beside, *arguments)
        elif kind == "log":
            name, level, text = arguments
            logging.getLogger(name).log(level, "%s", text)
        else:
            self._user.carry_out(kind, number, *arguments)

    # On the event loop.

    def _take_beside(self, kind: str, *arguments: Any) -> None:
        handlers: dict[str, Callable[..., None]] = {
            "http": self._answers.http,
            "received": self._answers.received,
            "left": self._answers.left,
            "ready": self._begin,
            "metrics": self._scraped,
            "last": self._keep,
        }
        handlers[kind](*arguments)

    def _begin(self) -> None:
        self.ready = True
        self._begun()

    def _scraped(self, number: int, samples: Samples) -> None:
        self._keep(samples)
        future = self._scrapes.get(number)
        if future is not None and not future.done():
            future.set_result(samples)

    def _keep(self, samples: Samples) -> None:
        self.last = samples

    def _end(self) -> None:
        self.ready = False
        self._connections.close()
        self._answers.end()
        if not self.ended.done():
            self.ended.set_result(None)


class HttpProcesses:
    """The further HTTP processes of a server with one model on GPUs; used on the event loop only.

    The first process accepts connections and hands them to the others in turn. It serves them itself until one of these
    is ready, and if there is none.
    """

    def __init__(self, models: Models, app: ASGIApp, server: Server, listener: socket.socket) -> None:
        self._models, self._app, self._server = models, app, server
        self._listener = listener.dup()  # uvicorn closes its own
        self._accepting = False
        self._turns = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._service: Service | None = None
        self._running: list[FurtherProcess] = []
        self._past: list[Samples] = []  # of processes that have ended
        self._rows = iter(range(1, ROWS))  # one that fails again and again is not started for ever
        self._busy = False  # True after many requests were active at once

    def adjust(self) -> None:
        """Start processes until the wanted number of them runs."""
        for one in [one for one in self._running if one.ended.done()]:
            log.warning("an HTTP process has ended")
            self._remove(one)
        service = self._models.served[0].service
        self._busy = self._busy or self._models.active >= _MANY
        for _ in range(0 if service is None else self._wanted(service) - len(self._running)):
            assert service is not None
            if self._service is not service:
                self._service, self._rows = service, iter(range(1, ROWS))
            row = next(self._rows, None)
            if row is not None:
                self._start(row, service)

    @property
    def ready(self) -> int:
        """Number of processes that serve connections."""
        return sum(one.ready for one in self._running)

    def drain(self) -> None:
        """Let the processes refuse new requests."""
        for one in self._running:
            one.tell("drain")

    async def close(self) -> None:
        """Accept no more connections, and end the processes."""
        self._stop_accepting()
        self._listener.close()
        await self._end_all()

    def _stop_accepting(self) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)

    async def _end_all(self) -> None:
        running = self._running.copy()
        await asyncio.gather(*(one.stop() for one in running))
        for one in running:
            self._remove(one)

    async def _retire(self) -> None:
        """End the processes after their requests; other ones go to the first process."""
        self.drain()
        while self._service is not None and self._service.counts.active_elsewhere:
            await asyncio.sleep(0.05)
        await self._end_all()

    async def samples(self) -> list[Samples]:
        """Return the numbers of all processes for a scrape, those that have ended included."""
        return [*self._past, *await asyncio.gather(*(one.samples() for one in self._running))]

    def _remove(self, one: FurtherProcess) -> None:
        if one in self._running:
            self._running.remove(one)
            self._past.append(one.last)

    def _wanted(self, service: Service) -> int:
        """Return the number of further processes. A model that may be unloaded when it is idle has none."""
        models, one = self._models, self._models.served[0]
        stays = models.settings.idle is None and one.keep_alive is None and one.usable and not models.draining
        gpus = _gpus(service)
        needed = gpus > 1 or (gpus and self._busy)
        if sys.platform != "linux" or not models.alone or not stays or not needed:
            return 0
        return min(max(_LEAST, _FOR_EACH_GPU * gpus), (os.cpu_count() or 1) // _CORES, ROWS - 1)

    def _start(self, row: int, service: Service) -> None:
        from bitnet_hal.errors import BitnetError

        try:
            self._running.append(FurtherProcess(row, service, self._app, self._begin))
        except (BitnetError, OSError) as exc:
            log.warning("an HTTP process cannot be started: %s", exc)
        service.retire = self._retire

    def _begin(self) -> None:
        """Accept connections for a process that is ready."""
        if self._models.draining:
            self.drain()  # it was told before it could listen
        if not self._accepting and self._listener.fileno() >= 0:
            self._accepting = True
            for server in self._server.servers:
                server.close()  # it accepts no more; connections that wait are taken here
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """Hand connections that wait to the processes."""
        for _ in range(_BURST):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                log.warning("no connection can be accepted: %s", exc)
                self._stop_accepting()
                asyncio.get_running_loop().call_later(_PAUSE, self._accept_again)
                return
            connection.setblocking(False)
            ready = [one for one in self._running if one.ready]
            if not (ready and ready[next(self._turns) % len(ready)].give(connection)):
                task = asyncio.create_task(self._server.serve_connection(connection))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _accept_again(self) -> None:
        if self._listener.fileno() >= 0:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)


def _gpus(service: Service) -> int:
    """Return the number of GPUs with memory of their own that take requests; others are too slow to wait for HTTP."""
    from bitnet_hal.device import DeviceType

    infos = [engine.device.info for engine in service.replicas.engines]
    return sum(info.type is DeviceType.GPU for info in infos)
