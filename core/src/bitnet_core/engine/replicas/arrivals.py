"""Detection of devices that become usable again, and of new ones, while the others serve requests."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Protocol

from bitnet_hal.discovery.presence import hardware

from bitnet_core.engine.replicas.replica import Replica

if TYPE_CHECKING:
    from bitnet_hal.device import DeviceInfo

    from bitnet_core.engine.serving import DescribedDevice

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Seconds between two checks of the system's lists of hardware and of the devices that failed."""

NEW_SECONDS = 300.0
"""Seconds after which drivers are asked for new devices although the system's lists of hardware are unchanged."""


class OtherDevices(Protocol):
    """The devices of a model besides the one that it was loaded onto.

    required: the user named them, so each must be usable at the start; if not, new devices are used too.
    """

    required: bool

    def names(self, first: str) -> Sequence[str]:
        """Return the device requests of the others. first: the device that the model was loaded onto."""

    def open(self, name: str) -> DescribedDevice:
        """Open a device by its request."""

    def reopen(self, info: DeviceInfo) -> DescribedDevice:
        """Open a device that `arrived` found."""

    def arrived(
        self, away: Mapping[str, DeviceInfo | None], used: Sequence[DeviceInfo], *, new: bool
    ) -> Mapping[str, DeviceInfo]:
        """Ask drivers, in other processes, which devices can be used now, and return them by request.

        away: devices that failed, with their descriptions if they were open; used: devices in use. new: also look for
        devices that are in neither.
        """


class Arrivals:
    """The thread that looks for devices. take_in: called with the request and description of each device found."""

    def __init__(
        self,
        others: OtherDevices,
        replicas: Callable[[], list[Replica[Any]]],
        take_in: Callable[[str, DeviceInfo], None],
    ) -> None:
        self._others = others
        self._replicas = replicas
        self._take_in = take_in
        self._stop = Event()
        self._thread = Thread(target=self._run, name="arrivals", daemon=True)  # a driver that hangs must not block exit

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread that looks for devices."""
        self._stop.set()

    def _run(self) -> None:
        cards = hardware()
        looked = time.monotonic()
        while not self._stop.wait(LOOK_SECONDS):
            before = cards
            cards = hardware()
            changed = cards != before
            new = not self._others.required and (changed or time.monotonic() - looked > NEW_SECONDS)
            if new:
                looked = time.monotonic()
            try:
                self._look(new=new, changed=changed)
            except Exception as exc:  # noqa: BLE001 - the next attempt may succeed
                log.warning("looking for devices failed: %s", exc)

    def _look(self, *, new: bool, changed: bool) -> None:
        replicas = self._replicas()
        away: dict[str, DeviceInfo | None] = {}
        used: list[DeviceInfo] = []
        for replica in replicas:
            info = None if replica.engine is None else replica.engine.device.info
            if replica.state == "away" and (changed or replica.may_return):
                away[replica.name] = info
            elif info is not None:
                used.append(info)
        if not (away or new):
            return
        for name, info in self._others.arrived(away, used, new=new).items():
            if not self._stop.is_set():
                self._take_in(name, info)
