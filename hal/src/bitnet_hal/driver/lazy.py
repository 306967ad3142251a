"""A backend whose modules are imported at their first use, so that its plugin loads no driver."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from threading import Thread
from typing import Any

from bitnet_hal.device import Device, DeviceInfo
from bitnet_hal.driver.enumerate import by_index, info_of


@dataclass(frozen=True, slots=True)
class LazyBackend:
    """A Backend whose functions are given as "module:name".

    listing: "module:function" that returns a DeviceInfo, or an object with the attribute `info`, for each device. It
    raises BackendUnavailableError if there is none.
    opening: "module:class" of a Device, constructed from one of the objects that `listing` returned.
    begins: (library, function) of a driver that starts slowly; the function is called with 0 in a thread while the
    module of `listing` is imported, and `listing` calls it again.
    """

    name: str
    api: tuple[int, int]
    listing: str
    opening: str
    begins: tuple[str, str] | None = None

    def devices(self) -> Sequence[DeviceInfo]:
        """Return the descriptions of all devices."""
        return [info_of(listed) for listed in self._listed()]

    def open(self, index: int) -> Device:
        """Open one of `devices()`. Raises DeviceNotFoundError if none has this index."""
        device: Device = _named(self.opening)(by_index(self._listed(), index, self.name))
        return device

    def _listed(self) -> Sequence[Any]:
        if self.begins:
            Thread(target=_begin, args=self.begins, daemon=True).start()
        listed: Sequence[Any] = _named(self.listing)()
        return listed


def _begin(library: str, function: str) -> None:
    with suppress(OSError, AttributeError):  # `listing` reports what is missing
        getattr(ctypes.CDLL(library), function)(0)


def _named(place: str) -> Callable[..., Any]:
    module, _, name = place.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found
