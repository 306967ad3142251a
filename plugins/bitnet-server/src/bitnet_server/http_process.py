"""A further process that serves connections of the first one, and gives their requests to its queue.

It reads requests, makes tokens of texts and texts of tokens, and sends answers; devices, the queue and everything that
is asked beside texts belong to the first process.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, Any, NoReturn

from bitnet_core.api.replicas import ReplicaOpener, load_apart
from bitnet_core.cli.start import exclude_from_collection
from bitnet_core.engine.replicas.device_process import DeviceProcess
from bitnet_core.engine.replicas.messages import Channel, forward_logs
from bitnet_core.engine.replicas.own_pipes import own_pipes
from bitnet_hal.errors import BitnetError
from starlette.types import ASGIApp, Receive, Scope, Send

from bitnet_server.app import make_app
from bitnet_server.command import TURN
from bitnet_server.models import Models
from bitnet_server.protocols.paths import SHARED
from bitnet_server.relay import Relay
from bitnet_server.run import Server, config_of
from bitnet_server.served_model import ServedModel
from bitnet_server.settings import Settings
from bitnet_server.shared_counts import SharedCounts

if TYPE_CHECKING:
    from bitnet_core.api import Model

_LOOK_SECONDS = 0.05
"""Pause between two looks at whether the first process has ended."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message to the process. names: of the model. descriptor, row: see SharedCounts. connections: the
    descriptor of a socket from which connections come. levels: of loggers."""

    settings: Settings
    names: tuple[str, ...]
    opener: ReplicaOpener
    descriptor: int
    row: int
    connections: int
    levels: Mapping[str, int]


class _FirstProcess:
    """The process that has started this one, as DeviceProcess sees it."""

    def __init__(self, receiving: IO[bytes], sending: IO[bytes]) -> None:
        self.stdin: IO[bytes] | None = sending
        self.stdout: IO[bytes] | None = receiving
        self.pid = os.getppid()

    def kill(self) -> None:
        """Do nothing: the first process ends this one."""

    def wait(self) -> int:
        """Return at once."""
        return 0


class HttpProcess:
    """The server of this process. queue: of the first process."""

    def __init__(self, setup: Setup, queue: DeviceProcess) -> None:
        self._setup, self._queue = setup, queue
        counts = SharedCounts(setup.descriptor, setup.row)
        self._models = Models([ServedModel(self._load, setup.names, counts=counts)], setup.settings, lambda text: None)
        self._tell = partial(queue.tell, "beside")
        self._relay = Relay(self._tell, setup.settings.send_timeout)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    async def serve(self) -> None:
        """Serve until the first process ends it, or has ended."""
        loop = asyncio.get_running_loop()

        def beside(*message: Any) -> None:
            loop.call_soon_threadsafe(partial(self._take, *message))

        self._queue.beside = beside
        self._models.start()
        while self._models.loading:
            if self._over:
                return
            await asyncio.sleep(_LOOK_SECONDS)
        server = Server(config_of(self._app(), self._setup.settings))
        serving = asyncio.create_task(server.serve(sockets=[]))
        with socket.socket(fileno=self._setup.connections) as connections:
            connections.setblocking(False)
            loop.add_reader(connections, self._accept, connections, server)
            self._tell("ready")
            while not self._over:
                await asyncio.sleep(_LOOK_SECONDS)
            loop.remove_reader(connections)
        self._relay.end()
        server.should_exit = True
        await serving
        self._tell("last", self._models.metrics.samples())
        await self._models.close()

    def _accept(self, connections: socket.socket, server: Server) -> None:
        """Serve the next connections."""
        with suppress(OSError):  # no more of them
            while True:
                data, descriptors, _, _ = socket.recv_fds(connections, 1, 1)
                for descriptor in descriptors:
                    connection = socket.socket(fileno=descriptor)
                    connection.setblocking(False)
                    task = asyncio.create_task(server.serve_connection(connection))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                if not data:
                    return

    @property
    def _over(self) -> bool:
        return self._stopped or self._queue.ended is not None or self._models.error is not None

    def _load(self, make_room: Callable[..., None]) -> Model:
        model = load_apart(self._setup.opener, lambda: self._queue)
        model.tokenizer.prepare()
        exclude_from_collection()
        return model

    def _app(self) -> ASGIApp:
        """Return the application: texts are made here, the first process answers everything else."""
        own = make_app(self._models)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await (own if scope["path"] in SHARED else self._relay)(scope, receive, send)

        return app

    def _take(self, kind: str, *arguments: Any) -> None:
        """Take a message of the first process."""
        if kind == "answered":
            self._relay.answered(*arguments)
        elif kind == "metrics":
            self._tell("metrics", *arguments, self._models.metrics.samples())
        elif kind == "drain":
            self._models.drain()
        elif kind == "stop":
            self._stopped = True


def _no_device() -> NoReturn:
    raise NotImplementedError("the first process has opened the devices")


def main() -> None:
    """Run in the spawned interpreter."""
    pipes = own_pipes()
    sys.setswitchinterval(TURN)
    try:
        message = Channel(*pipes).receive()
        if message is not None:
            (setup,) = message
            queue = DeviceProcess(_no_device, process=_FirstProcess(*pipes))
            forward_logs(lambda record: queue.tell(*record), setup.levels)
            with suppress(BitnetError):  # the first process has ended
                asyncio.run(HttpProcess(setup, queue).serve())
    finally:
        os._exit(0)
