"""The devices that a backend found, and the one that was asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol, TypeVar

from bitnet_core.errors import DeviceNotFoundError
from bitnet_core.hal.device import DeviceInfo


class Found(Protocol):
    """A driver's device with its description."""

    @property
    def info(self) -> DeviceInfo: ...


class Handled(NamedTuple):
    """One that the driver knows by a handle."""

    handle: Any
    info: DeviceInfo


F = TypeVar("F", bound=Found)


def numbered(devices: Iterable[F], index: int, backend: str) -> F:
    """The one with this index; DeviceNotFoundError, which names those that are there."""
    by_index = {found.info.index: found for found in devices}
    if index not in by_index:
        there = ", ".join(f"{found.info.request} {found.info.name}" for found in by_index.values())
        raise DeviceNotFoundError(f"there is no device {backend}:{index}", backend=backend, hint=f"There is {there}")
    return by_index[index]
