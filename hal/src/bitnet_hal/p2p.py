"""The way of bytes between two devices."""

from __future__ import annotations

from typing import Literal

from bitnet_hal.device import DeviceInfo

Route = Literal["none", "host memory"]


def probe(one: DeviceInfo, other: DeviceInfo) -> Route:
    """Return the route of a copy from one device to another: "none" is needed within one device.

    All others go through host memory, a download and an upload: the contract has no copy between devices.
    """
    return "none" if one.request == other.request else "host memory"
