"""The devices that a backend found, and the one that was asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeVar

from bitnet_hal.device import DeviceInfo
from bitnet_hal.errors import DeviceNotFoundError, GpuError

log = logging.getLogger(__name__)


class HasInfo(Protocol):
    """A driver's device with its description."""

    @property
    def info(self) -> DeviceInfo: ...


class EnumeratedDevice(NamedTuple):
    """One that the driver knows by a handle."""

    handle: Any
    info: DeviceInfo


F = TypeVar("F", bound=HasInfo)
D = TypeVar("D")
U = TypeVar("U")


def by_index(devices: Iterable[F], index: int, backend: str) -> F:
    """The one with this index; DeviceNotFoundError, which names those that are there."""
    present = {found.info.index: found for found in devices}
    if index not in present:
        there = ", ".join(f"{found.info.request} {found.info.name}" for found in present.values())
        raise DeviceNotFoundError(f"there is no device {backend}:{index}", backend=backend, hint=f"There is {there}")
    return present[index]


def filter_devices(
    devices: Iterable[D], backend: str, describe: Callable[[D, int], U | str | None]
) -> tuple[list[U], list[str]]:
    """The devices that can be used, which keep their index, and why others cannot.

    describe: a driver's device, by its index, with its description; or why it cannot be used, as a text or a GpuError;
    or None, if it is none of the backend's.
    """
    found, reasons = list[U](), list[str]()
    for index, device in enumerate(devices):
        try:
            one = describe(device, index)
        except GpuError as error:
            one = str(error)
        if isinstance(one, str):
            log.info("%s:%d is ignored: %s", backend, index, one)
            reasons.append(one)
        elif one is not None:
            found.append(one)
    return found, reasons


def pci_address(domain: int, bus: int, device: int, function: int = 0) -> str:
    """A card's `physical_id`, as all backends write it, so that one that is seen by two of them counts once."""
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"
