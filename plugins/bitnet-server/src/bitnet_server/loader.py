"""Loading and unloading of models: one is loaded at a time; idle ones leave, and those whose memory another needs."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from bitnet_hal.errors import OutOfMemoryError

from bitnet_server.errors import ApiError, not_loaded, unavailable
from bitnet_server.metrics import Metrics
from bitnet_server.protocols.kept_responses import KeptResponses
from bitnet_server.served_model import ServedModel
from bitnet_server.service import Service
from bitnet_server.settings import Settings

if TYPE_CHECKING:  # they take long to import: the server listens meanwhile
    from bitnet_core.engine.serving import DescribedDevice
    from bitnet_core.plan.memory import DeviceMemoryPlan
    from bitnet_hal.device import DeviceInfo

log = logging.getLogger(__name__)


class Loader:
    """The loading and unloading of the server's models; used on the event loop only."""

    def __init__(
        self,
        served: Sequence[ServedModel],
        settings: Settings,
        metrics: Metrics,
        kept_responses: KeptResponses,
        say: Callable[[str], None],
    ) -> None:
        self._served, self._settings, self._kept_responses, self._say = served, settings, kept_responses, say
        self._metrics = {id(one): metrics.of_model() for one in served}
        self._turn = asyncio.Lock()  # one model is loaded at a time
        self._tasks: set[asyncio.Task[None]] = set()

    def load(self, one: ServedModel, *, at_start: bool = False) -> None:
        """Begin to load a model, unless it is being loaded. at_start: also if no request waits for it."""
        if one.loading is None:
            one.loading = self._begun(self._load(one, at_start))

    def unload(self, one: ServedModel) -> asyncio.Task[None]:
        """Begin to unload a loaded model after its running requests; new ones wait until it is loaded again."""
        if one.unloading is None:
            one.unloading = self._begun(self._unload(one))
        return one.unloading

    def released(self, one: ServedModel) -> None:
        """Record that a request for a model has ended."""
        if one.users:
            return
        loop = asyncio.get_running_loop()
        one.used = loop.time()
        one.quiet.set()
        if one.idle_timer is not None:
            one.idle_timer.cancel()
            one.idle_timer = None
        idle = self._settings.idle if one.keep_alive is None else one.keep_alive
        if idle is not None and idle != math.inf and not one.pinned:
            one.idle_timer = loop.call_later(idle, self._idle, one)

    def stop(self) -> None:
        """Cancel loads and unloads that have not ended."""
        for task in self._tasks:
            task.cancel()

    def _begun(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _idle(self, one: ServedModel) -> None:
        if one.usable and not one.users:
            self.unload(one)

    async def _load(self, one: ServedModel, at_start: bool) -> None:
        """Load a model for the requests that wait for it, or at the start."""
        try:
            async with self._turn:
                if one.unloading is not None:
                    await asyncio.wait([one.unloading])
                if one.lost:
                    await self._unload(one)
                if one.service is None and (one.waiters or at_start):
                    await self._open(one)
        except Exception as exc:
            log.debug("loading failed", exc_info=exc)
            one.error = exc
            one.fail_waiters(exc if isinstance(exc, ApiError) else not_loaded(one.names, exc))
        else:
            one.admit_waiters()
            self.released(one)
        finally:
            one.loading = None

    async def _open(self, one: ServedModel) -> None:
        """Load a model; unload others as long as memory is short. Raises the error of the loading."""
        await self._keep_count(one)
        while True:
            metrics = self._metrics[id(one)]
            load = partial(one.load, partial(self._make_room, one, asyncio.get_running_loop()))
            one.service = Service(load, self._settings, one.names, metrics, self._kept_responses, one.counts)
            one.service.start()
            try:
                await one.service.loaded()
            except OutOfMemoryError:
                one.service = None
                if not await self._evict(one):
                    raise
            except Exception:
                one.service = None
                raise
            else:
                break
        one.names, one.error = one.service.names, None
        one.loads += 1
        model = one.service.model
        info = model.device.info
        one.placed = (info, model.engine.memory_plan().weights)
        one.nbytes = one.nbytes or sum(tensor.nbytes for tensor in model.source.tensors)
        more = " and others" if model.others is not None else ""
        layers = model.engine.layers_by_device
        if len(layers) > 1:
            more += ", layers " + ", ".join(f"{request} {count}" for request, count in layers.items())
        self._say(f"{one.names[0]} on {info.request} ({info.name}){more}, {one.service.slots} concurrent requests")

    async def _keep_count(self, one: ServedModel) -> None:
        """Unload models until another may be loaded. Raises ApiError 503 if all of them are pinned."""
        most = self._settings.max_loaded
        while most is not None and sum(other.in_memory for other in self._served) >= most:
            if not await self._evict(one):
                raise unavailable(f"{most} models are loaded and pinned, and no more may be (--max-loaded)", 60)

    def _make_room(
        self, one: ServedModel, loop: asyncio.AbstractEventLoop, device: DescribedDevice, plan: DeviceMemoryPlan
    ) -> None:
        """Unload models until a plan fits in a device's memory, or none can be (see MakeRoom)."""
        from bitnet_server.room import shortage

        while True:
            others = (other for other in self._served if other is not one and other.in_memory)
            beside = [other.placed for other in others if other.placed is not None]
            if not shortage(device, plan, beside):
                return
            if not asyncio.run_coroutine_threadsafe(self._evict(one, device.info), loop).result():
                return

    async def _evict(self, one: ServedModel, info: DeviceInfo | None = None) -> bool:
        """Unload another model, of the same memory if a device is given; False if none may be.

        An idle one is preferred to one in use, and then the one that was used least lately.
        """
        from bitnet_server.room import same_memory

        leaving = [other.unloading for other in self._served if other.unloading is not None]
        if leaving:
            await asyncio.wait(leaving)
            return True
        found = [
            other
            for other in self._served
            if other is not one and other.usable and not other.pinned
            if info is None or (other.placed is not None and same_memory(other.placed[0], info))
        ]
        if not found:
            return False
        await asyncio.wait([self.unload(min(found, key=lambda other: (other.users > 0, other.used)))])
        return True

    async def _unload(self, one: ServedModel) -> None:
        """Unload a model after its running requests."""
        try:
            if one.service is not None and one.service.retire is not None:
                await one.service.retire()
            while one.users:
                one.quiet.clear()
                await one.quiet.wait()
            if (service := one.service) is not None:
                one.service = one.keep_alive = None  # while it closes it answers nothing
                self._metrics[id(one)].unloaded()
                await asyncio.to_thread(service.close)
                self._say(f"{one.names[0]} is unloaded")
        finally:
            one.unloading = None
