"""Enumeration of a backend's devices: filter the usable ones, find one by index."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeVar

from bitnet_hal.device import DeviceInfo
from bitnet_hal.errors import DeviceNotFoundError, GpuError

log = logging.getLogger(__name__)


class HasInfo(Protocol):
    """An object with a device's description."""

    @property
    def info(self) -> DeviceInfo: ...


class EnumeratedDevice(NamedTuple):
    """A device's description with the driver's handle."""

    handle: Any
    info: DeviceInfo


F = TypeVar("F", bound=HasInfo | DeviceInfo)
D = TypeVar("D")
U = TypeVar("U")


def info_of(device: HasInfo | DeviceInfo) -> DeviceInfo:
    """Return the description of an enumerated device, which may be the description itself."""
    return device if isinstance(device, DeviceInfo) else device.info


def by_index(devices: Iterable[F], index: int, backend: str) -> F:
    """Return the device whose info has this index. Raises DeviceNotFoundError, whose hint lists the devices present."""
    present = {info_of(device).index: device for device in devices}
    if index not in present:
        names = ", ".join(f"{info.request} {info.name}" for info in map(info_of, present.values()))
        raise DeviceNotFoundError(f"there is no device {backend}:{index}", backend=backend, hint=f"Present: {names}")
    return present[index]


def filter_devices(
    devices: Iterable[D], backend: str, describe: Callable[[D, int], U | str | None]
) -> tuple[list[U], list[str]]:
    """Return the usable devices with their original indexes, and the reason per device that cannot be used.

    describe: called with a driver's device and its index. It returns the device with its description, or the reason
    why it cannot be used (or raises it as a GpuError), or None if the device does not belong to the backend.
    """
    usable: list[U] = []
    reasons: list[str] = []
    for index, device in enumerate(devices):
        try:
            described = describe(device, index)
        except GpuError as error:
            described = str(error)
        if isinstance(described, str):
            log.info("%s:%d is ignored: %s", backend, index, described)
            reasons.append(described)
        elif described is not None:
            usable.append(described)
    return usable, reasons


def pci_address(domain: int, bus: int, device: int, function: int = 0) -> str:
    """Format a card's `physical_id`. All backends use it, so that a card seen by two of them counts once."""
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"
