"""A model that the server offers: its names, its state, and the service while it is loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # they take long to import: the server listens meanwhile
    from bitnet_core.api import Model
    from bitnet_core.engine.serving import DescribedDevice
    from bitnet_core.plan.memory import DeviceMemoryPlan
    from bitnet_hal.device import DeviceInfo

    from bitnet_server.service import Service
    from bitnet_server.shared_counts import SharedCounts

MakeRoom = Callable[["DescribedDevice", "DeviceMemoryPlan"], None]
"""Unloads other models until a plan fits in a device's memory, or none can be; called in the engine's thread."""

State = Literal["unloaded", "loading", "loaded"]


@dataclass(eq=False, slots=True)
class ServedModel:
    """A model of the server's list; used on the event loop only.

    load: opens the model, in the engine's thread. names: for clients, the first is its id; () for those of the model
    itself. nbytes: size of its files, None if unknown. pinned: loaded at the start, and never unloaded. counts: those
    of the process that loaded it first, None in that process.
    """

    load: Callable[[MakeRoom], Model]
    names: tuple[str, ...] = ()
    nbytes: int | None = None
    pinned: bool = False
    counts: SharedCounts | None = None
    service: Service | None = None
    error: Exception | None = None  # of the last attempt to load it
    placed: tuple[DeviceInfo, int] | None = None  # the device that has it or had it, and the bytes of its weights
    loads: int = 0  # times it was loaded
    users: int = 0  # requests under way
    used: float = 0.0  # event loop's time at which the last request ended
    waiters: list[asyncio.Future[None]] = field(default_factory=list)  # requests that wait until it is loaded
    loading: asyncio.Task[None] | None = None
    unloading: asyncio.Task[None] | None = None
    keep_alive: float | None = None  # seconds without requests before it is unloaded, in place of --idle
    idle_timer: asyncio.TimerHandle | None = None
    quiet: asyncio.Event = field(default_factory=asyncio.Event)  # set when the last user has left

    @property
    def state(self) -> State:
        """The state for clients; a model that is being unloaded counts as loaded."""
        if self.loading is not None:
            return "loading"
        return "loaded" if self.in_memory else "unloaded"

    @property
    def in_memory(self) -> bool:
        """True if it is loaded, or its memory is not free yet."""
        return self.service is not None or self.unloading is not None

    @property
    def gone(self) -> bool:
        """True if it is unloaded, or is being unloaded and answers nothing more."""
        return self.service is None and self.loading is None

    @property
    def model(self) -> Model | None:
        """The model while it is loaded."""
        return self.service.model if self.service is not None and self.state == "loaded" else None

    @property
    def lost(self) -> bool:
        """True if its device is lost and there is no other."""
        return self.service is not None and self.service.lost

    @property
    def usable(self) -> bool:
        """True if a request can be added now."""
        return self.state == "loaded" and self.unloading is None

    @property
    def seconds_left(self) -> float | None:
        """Seconds until an idle model is unloaded; None if it is in use or stays."""
        if self.users or self.idle_timer is None:
            return None
        return self.idle_timer.when() - asyncio.get_running_loop().time()

    def admit_waiters(self) -> None:
        """Let the waiting requests use the model; they become users at once, so that it stays."""
        for waiter in self.waiters:
            if not waiter.done():
                self.users += 1
                waiter.set_result(None)
        self.waiters.clear()

    def fail_waiters(self, error: Exception) -> None:
        """End the waiting requests with an error."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self.waiters.clear()
