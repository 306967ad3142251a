"""Run the server: sockets, signals, draining, and a line of figures on a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import uvicorn
from bitnet_hal.errors import BitnetError, UsageError
from starlette.types import ASGIApp

from bitnet_server.app import make_app
from bitnet_server.http_processes import HttpProcesses
from bitnet_server.models import Models
from bitnet_server.protocol import GuardedProtocol
from bitnet_server.served_model import ServedModel
from bitnet_server.settings import Settings

if TYPE_CHECKING:  # it takes long to import: the server listens meanwhile
    from bitnet_core.engine.replicas.replica import DeviceState

log = logging.getLogger(__name__)

Say = Callable[[str], None]

_TOLD_EVERY = 10.0
"""Seconds between two lines of figures."""


def run(served: Sequence[ServedModel], settings: Settings, say: Say) -> None:
    """Serve models until a signal ends it. say: prints a message.

    Raises the BitnetError that kept a model from loading at the start, DeviceLostError if the only model's device is
    lost without a replacement, and UsageError if the address is taken.
    """
    listener = listen(settings)
    models = Models(served, settings, say)
    app = make_app(models)
    server = Server(config_of(app, settings))
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(serve(server, models, app, listener, say))
    if models.error is not None:
        if isinstance(models.error, BitnetError):
            raise models.error
        raise BitnetError(f"the model could not be loaded: {models.error}") from models.error


class Server(uvicorn.Server):
    """uvicorn's server with signal handlers of our own, which also serves connections that were accepted elsewhere."""

    async def serve_connection(self, connection: socket.socket) -> None:
        """Serve a connection; it is closed if that cannot begin."""
        config, loop = self.config, asyncio.get_running_loop()
        make = partial(config.http_protocol_class, config=config, server_state=self.server_state, app_state={})  # type: ignore[call-arg]  # as uvicorn calls it
        try:
            await loop.connect_accepted_socket(make, connection, ssl=config.ssl)
        except (OSError, RuntimeError) as exc:  # of the handshake, or the loop ends
            log.debug("a connection cannot be served: %s", exc)
            connection.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def config_of(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    """Return uvicorn's configuration."""
    return uvicorn.Config(
        app,
        http=GuardedProtocol,
        loop="auto",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
    )


def listen(settings: Settings) -> socket.socket:
    """Return a socket that listens. Raises UsageError if the address is taken."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":  # there it would let another program take the port as well
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(2048)
    except OSError as exc:
        listener.close()
        where = f"{settings.host}:{settings.port}"
        raise UsageError(f"cannot listen on {where}: {exc.strerror or exc}; use another --port") from exc
    listener.setblocking(False)
    return listener


async def serve(server: Server, models: Models, app: ASGIApp, listener: socket.socket, say: Say) -> None:
    """Serve models until a signal or an error ends it. app: of the server."""
    scheme = "https" if models.settings.certificate else "http"
    host, port = listener.getsockname()[:2]
    say(f"listening on {scheme}://{f'[{host}]' if ':' in host else host}:{port}")
    if not models.alone:
        say(f"models: {', '.join(one.names[0] for one in models.served)}")
    models.start()
    further = models.further = HttpProcesses(models, app, server, listener)
    drain = _Drain(server, models, further, say)
    watch = asyncio.create_task(_watch(server, models, further, say, drain))
    with _signals(drain.signalled):
        await server.serve(sockets=[listener])
    watch.cancel()
    await further.close()
    await models.close()


@contextlib.contextmanager
def _signals(action: Callable[[], None]) -> Iterator[None]:
    """Call `action` on the event loop at SIGINT and SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: loop.call_soon_threadsafe(action)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


class _Drain:
    """The shutdown: first not ready, then no new requests, then no waiting ones. A second signal ends it at once."""

    def __init__(self, server: Server, models: Models, further: HttpProcesses, say: Say) -> None:
        self._server, self._models, self._further, self._say = server, models, further, say
        self._task: asyncio.Task[None] | None = None

    def signalled(self) -> None:
        """Begin the shutdown, or end it at a second signal."""
        if self._task is None:
            self._task = asyncio.create_task(self._drain())
        else:
            self._server.force_exit = self._server.should_exit = True

    async def _drain(self) -> None:
        models, settings = self._models, self._models.settings
        models.leave()
        if settings.drain_delay:
            await asyncio.sleep(settings.drain_delay)
        models.drain()
        self._further.drain()
        if models.active:
            self._say(f"finishing {models.active} requests; Ctrl-C again ends them")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(settings.drain_timeout):
                while models.active and not self._server.should_exit:
                    await asyncio.sleep(0.05)
        if models.active:
            models.end_all()
            await asyncio.sleep(0.2)  # so that the errors reach the clients
        self._server.should_exit = True


def _changes(states: dict[str, str], devices: Iterable[DeviceState]) -> Iterator[str]:
    """Yield a message for each device that takes requests, or takes no more, since the states; updates these."""
    for one in devices:
        if one.state != states.get(one.device, "loading"):
            if one.state == "ready":
                yield f"{one.device} ({one.name}) takes requests"
            elif one.state == "away":
                yield f"{one.device} takes no requests: {one.reason}"
        states[one.device] = one.state


async def _watch(server: Server, models: Models, further: HttpProcesses, say: Say, drain: _Drain) -> None:
    """Print the server's progress; end the server if it can do nothing more."""
    while models.loading and models.error is None:
        await asyncio.sleep(0.05)
    if models.loading:
        server.should_exit = True
        return
    tokens = requests = 0
    states = {one.placed[0].request: "ready" for one in models.served if one.placed is not None}
    while True:
        for _ in range(round(_TOLD_EVERY)):
            await asyncio.sleep(1)
            further.adjust()
            for service in models.services if models.alone else ():
                for text in _changes(states, service.replicas.devices()):
                    say(text)
            if models.error is not None:
                say("the device is lost" if models.lost else str(models.error))
                drain.signalled()
                return
        made, asked = models.tokens_made, models.requests
        if made > tokens:
            say(f"{asked - requests} requests, {(made - tokens) / _TOLD_EVERY:.0f} tokens/s, {models.active} running")
        tokens, requests = made, asked
