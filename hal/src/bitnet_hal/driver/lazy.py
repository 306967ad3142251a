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
from bitnet_hal.driver.enumerate import by_index


@dataclass(frozen=True, slots=True)
class LazyBackend:
    """See Backend. listing: "module:function", which gives the descriptions of all devices or raises
    BackendUnavailableError; opening: "module:class" of a device, made from its index. begins: (library, function) of a
    driver that takes its time to begin, called with 0 while `listing` is imported, which calls it again."""

    name: str
    api: tuple[int, int]
    listing: str
    opening: str
    begins: tuple[str, str] | None = None

    def devices(self) -> Sequence[DeviceInfo]:
        """All devices that the driver shows."""
        infos: Sequence[DeviceInfo] = self._listed()
        return infos

    def open(self, index: int) -> Device:
        """Open one of `devices()`."""
        device: Device = _named(self.opening)(index)
        return device

    def _listed(self) -> Any:
        if self.begins:
            Thread(target=_begin, args=self.begins, daemon=True).start()
        return _named(self.listing)()


class LazyFinder(LazyBackend):
    """One whose `listing` gives what it found of each device (`driver.enumerate.HasInfo`), of which
    `opening` takes one."""

    def devices(self) -> Sequence[DeviceInfo]:
        """All devices that the driver shows."""
        return [found.info for found in self._listed()]

    def open(self, index: int) -> Device:
        """Open one of `devices()`."""
        device: Device = _named(self.opening)(by_index(self._listed(), index, self.name))
        return device


def _begin(library: str, function: str) -> None:
    with suppress(OSError, AttributeError):  # `listing` says what is missing
        getattr(ctypes.CDLL(library), function)(0)


def _named(place: str) -> Callable[..., Any]:
    module, _, name = place.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found
