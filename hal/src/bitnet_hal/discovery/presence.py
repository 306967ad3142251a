"""The devices that drivers list now: each is asked in a new process, because a loaded driver never updates its list.

A driver that hangs or crashes affects the answer of its own backend only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

from bitnet_hal.device import DeviceInfo
from bitnet_hal.discovery.child import Child, spawned
from bitnet_hal.discovery.claims import reclassify_software, validate
from bitnet_hal.discovery.fake import fake_gpus
from bitnet_hal.discovery.plain import from_plain
from bitnet_hal.discovery.registry import registry
from bitnet_hal.isolation import IGNORED_AFTER

LOOK_SECONDS = 0.5
"""Seconds between two reads of the system's lists of hardware, which cost nothing."""

_LISTS = ("/sys/bus/pci/devices", "/dev/dri", "/proc/driver/nvidia/gpus", "/dev/accel")
"""Folders of Linux with an entry for each card; a change makes the drivers be asked at once."""

_CPUS = ("cpu", "numpy")


@dataclass(frozen=True, slots=True)
class Presence:
    """The devices that a backend lists now. reason: why the backend could not be asked, "" if it could."""

    backend: str
    devices: tuple[DeviceInfo, ...] = ()
    reason: str = ""


def watchable() -> list[str]:
    """Return the backends whose devices may come and go; none if BITNET_GPU_FAKE replaces them."""
    return [] if fake_gpus() is not None else [name for name in registry().backends if name not in _CPUS]


def present(name: str, seconds: float = IGNORED_AFTER) -> Presence:
    """Ask the driver of a backend in a new process, for at most this many seconds."""
    try:
        process = spawned(name, "main_devices")
    except (OSError, ValueError) as exc:
        return Presence(name, reason=f"no process can be started: {exc}")
    try:
        assert process.stdout is not None  # it is a pipe
        child = Child(process, process.stdout.fileno())
        child.start_reading()
        child.is_done(seconds)
        answer = child.answer
        if not answer:
            return Presence(name, reason=child.failure() or "its driver gave no answer")
    finally:
        process.kill()
        process.communicate()
    return Presence(name, tuple(_usable(name, json.loads(answer))))


def _usable(name: str, listed: Sequence[object]) -> list[DeviceInfo]:
    """Return the devices whose descriptions are valid."""
    backend = registry().backends[name]
    usable: list[DeviceInfo] = []
    for plain in listed:
        with suppress(Exception):  # a plugin may describe anything
            info = from_plain(plain)  # type: ignore[arg-type]  # checked by validate
            if not validate(backend, info, usable):
                usable.append(reclassify_software(info))
    return usable


def hardware() -> frozenset[str]:
    """Return the names of cards in the system's lists, which change when a card comes or goes.

    Empty on systems other than Linux.
    """
    found: set[str] = set()
    if sys.platform == "linux":
        for folder in _LISTS:
            with suppress(OSError):
                found.update(f"{folder}/{entry.name}" for entry in Path(folder).iterdir())
    return frozenset(found)


class Watch:
    """A watch that asks the drivers of backends periodically, each in its own thread.

    changed: called in these threads with the first answer, and with each one that differs from the last. seconds: pause
    between two questions, which a change of the hardware ends.
    """

    def __init__(self, names: Sequence[str], changed: Callable[[Presence], None], seconds: float) -> None:
        self._changed = changed
        self._seconds = seconds
        self._stop = Event()
        self._threads = [Thread(target=self._ask, args=(name,), name=f"watch-{name}", daemon=True) for name in names]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop asking without waiting for a pending answer."""
        self._stop.set()

    def _ask(self, name: str) -> None:
        last: Presence | None = None
        while not self._stop.is_set():
            before = hardware()
            found = present(name)
            if found != last and not self._stop.is_set():
                last = found
                self._changed(found)
            waited = 0.0
            while waited < self._seconds and hardware() == before and not self._stop.wait(LOOK_SECONDS):
                waited += LOOK_SECONDS
