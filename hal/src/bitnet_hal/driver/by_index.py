"""The device that was asked for, where descriptions are all there is before one is opened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from bitnet_hal.device import DeviceInfo
from bitnet_hal.driver.enumerate import by_index


class _Described(NamedTuple):
    info: DeviceInfo


def info_by_index(infos: Iterable[DeviceInfo], index: int, backend: str) -> DeviceInfo:
    """The one with this index; DeviceNotFoundError, which names those that are there."""
    return by_index(map(_Described, infos), index, backend).info
