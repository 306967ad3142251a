"""A backend whose modules are imported at their first use, so that its plugin loads no driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from bitnet_core.hal.device import Device, DeviceInfo
from bitnet_core.hal.found import numbered


@dataclass(frozen=True, slots=True)
class LazyBackend:
    """See Backend. listing: "module:function", which gives the descriptions of all devices or raises
    BackendUnavailableError; opening: "module:class" of a device, made from its index."""

    name: str
    api: tuple[int, int]
    listing: str
    opening: str

    def devices(self) -> Sequence[DeviceInfo]:
        """All devices that the driver shows."""
        infos: Sequence[DeviceInfo] = _named(self.listing)()
        return infos

    def open(self, index: int) -> Device:
        """Open one of `devices()`."""
        device: Device = _named(self.opening)(index)
        return device


class LazyFinder(LazyBackend):
    """One whose `listing` gives what it found of each device (`hal.found.Found`), of which `opening` takes one."""

    def devices(self) -> Sequence[DeviceInfo]:
        """All devices that the driver shows."""
        return [found.info for found in _named(self.listing)()]

    def open(self, index: int) -> Device:
        """Open one of `devices()`."""
        device: Device = _named(self.opening)(numbered(_named(self.listing)(), index, self.name))
        return device


def _named(place: str) -> Callable[..., Any]:
    module, _, name = place.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found
