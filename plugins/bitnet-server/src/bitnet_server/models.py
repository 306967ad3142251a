"""The models behind one port: choose the one of a request, load and unload them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from bitnet_hal.errors import DeviceLostError

from bitnet_server.errors import ApiError, no_model, queue_full, unavailable
from bitnet_server.loader import Loader
from bitnet_server.metrics import Metrics
from bitnet_server.protocols.kept_responses import KeptResponses
from bitnet_server.served_model import ServedModel
from bitnet_server.service import Service
from bitnet_server.settings import Settings

if TYPE_CHECKING:
    from bitnet_server.http_processes import HttpProcesses


class Models:
    """The server without its endpoints. A single model is loaded at the start; of several, those that are pinned.

    say: prints a message about a model that is loaded or unloaded. further: the server's other HTTP processes, None in
    one of them.
    """

    def __init__(self, served: Sequence[ServedModel], settings: Settings, say: Callable[[str], None]) -> None:
        self.settings = settings
        self.served = list(served)
        self.alone = len(self.served) == 1
        self.metrics = Metrics()
        self.kept_responses = KeptResponses()
        self.created = int(time.time())
        self.draining = False  # no new work
        self.leaving = False  # load balancers send requests elsewhere
        self.further: HttpProcesses | None = None
        self._loader = Loader(self.served, settings, self.metrics, self.kept_responses, say)

    # The life of the server.

    def start(self) -> None:
        """Begin to load the models that are loaded at the start; call it on the running event loop."""
        for one in self._first_ones:
            self._loader.load(one, at_start=True)

    def leave(self) -> None:
        """Report the server as not ready, so that load balancers send requests elsewhere."""
        self.leaving = True
        for service in self.services:
            service.leaving = True

    def drain(self) -> None:
        """Refuse new requests."""
        self.draining = True
        for service in self.services:
            service.draining = True

    def end_all(self) -> None:
        """Fail all requests, with an error for their clients."""
        for one in self.served:
            one.fail_waiters(unavailable("the server is shutting down", 5, again=False))
        for service in self.services:
            service.end_all()

    async def close(self) -> None:
        """Close all models; running requests end with an error."""
        self.drain()
        self._loader.stop()
        await asyncio.gather(*(asyncio.to_thread(service.close) for service in self.services))

    @property
    def _first_ones(self) -> list[ServedModel]:
        """The models that are loaded at the start."""
        return [one for one in self.served if one.pinned or self.alone]

    @property
    def services(self) -> list[Service]:
        """The services of the models that are loaded or being loaded."""
        return [one.service for one in self.served if one.service is not None]

    @property
    def loading(self) -> bool:
        """True while a model of the start is not loaded."""
        return not all(one.loads for one in self._first_ones)

    @property
    def error(self) -> Exception | None:
        """The error that ends the server: a model of the start cannot be loaded, or the only model's device is lost."""
        for one in self._first_ones:
            if not one.loads and one.error is not None:
                return one.error
        return self.served[0].service.error if self.alone and self.served[0].service else None

    @property
    def lost(self) -> bool:
        """True if the device of the only model is lost and there is no other."""
        return isinstance(self.error, DeviceLostError)

    @property
    def alive(self) -> bool:
        """True if no engine is stuck in a step."""
        return all(service.alive for service in self.services)

    @property
    def ready(self) -> bool:
        """True while new requests are accepted."""
        return self.alive and not (self.loading or self.draining or self.leaving or self.error)

    @property
    def active(self) -> int:
        """Number of running and waiting requests."""
        return sum(service.active for service in self.services) + sum(len(one.waiters) for one in self.served)

    @property
    def tokens_made(self) -> int:
        """Tokens that the loaded models have generated."""
        return sum(service.counts.tokens for service in self.services)

    @property
    def requests(self) -> int:
        """Requests that the loaded models have taken."""
        return sum(service.counts.requests for service in self.services)

    # Requests.

    def check_loaded(self) -> None:
        """Raise ApiError 503 while the only model is loaded for the first time: it has no names yet."""
        if self.alone and not self.served[0].loads:
            raise unavailable("loading model", 1)

    def check_accepting(self) -> None:
        """Raise ApiError unless new requests are accepted."""
        if self.draining:
            raise unavailable("the server is shutting down", 5, again=False)
        self.check_loaded()
        service = self.served[0].service
        if self.alone and self.served[0].usable and service is not None:
            service.check_accepting()

    def check_room(self) -> None:
        """Raise ApiError 429 if the queue of the only model is full."""
        service = self.served[0].service
        if self.alone and service is not None and not service.loading:
            service.check_room(1)

    def find(self, name: str | None) -> ServedModel:
        """Return the model of a name, or the first one. Raises ApiError 404 for an unknown name."""
        if name is None:
            return self.served[0]
        for one in self.served:
            if name in one.names:
                return one
        raise no_model(name, [known for one in self.served for known in one.names])

    def acquire_loaded(self, name: str | None) -> ServedModel | None:
        """Return a loaded model, which stays until `release`; None if it has to be loaded first. Raises ApiError if it
        cannot be used."""
        self.check_accepting()
        one = self.find(name)
        if not one.usable or (one.lost and not self.alone):
            return None
        one.users += 1
        return one

    async def acquire(self, name: str | None) -> ServedModel:
        """Return a loaded model as `acquire_loaded` does; load it if needed."""
        one = self.acquire_loaded(name)
        if one is None:
            one = self.find(name)
            await self._wait(one)
        return one

    async def _wait(self, one: ServedModel) -> None:
        """Wait until a model is loaded, as a user of it."""
        if len(one.waiters) >= max(1, self.settings.max_queue):
            raise queue_full(10)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        one.waiters.append(waiter)
        self._loader.load(one)
        try:
            async with asyncio.timeout(self.settings.queue_timeout):
                await waiter
        except (TimeoutError, asyncio.CancelledError) as exc:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release(one)
            if isinstance(exc, TimeoutError):
                raise unavailable("the request waited too long for its model", 10) from exc
            raise
        finally:
            if waiter in one.waiters:
                one.waiters.remove(waiter)

    def release(self, one: ServedModel, keep_alive: float | None = None) -> None:
        """End a use of a model, which stays loaded for so many seconds if it is not used again."""
        one.users -= 1
        if keep_alive is not None:
            one.keep_alive = keep_alive
        self._loader.released(one)

    def unload(self, one: ServedModel) -> None:
        """Begin to unload a model after its running requests. Raises ApiError 400 if it is pinned."""
        if one.pinned:
            raise ApiError(400, f"{one.names[0]} is pinned: it stays loaded", param="model")
        if one.usable:
            self._loader.unload(one)

    @asynccontextmanager
    async def use(self, name: str | None, keep_alive: float | None = None) -> AsyncIterator[Service]:
        """Yield the service of a loaded model, which stays until the end of the block."""
        one = await self.acquire(name)
        try:
            assert one.service is not None
            yield one.service
        finally:
            self.release(one, keep_alive)
