"""The way of bytes between two devices."""

from __future__ import annotations

from typing import Literal

from bitnet_hal.device import DeviceInfo

Route = Literal["none", "peer copy", "host memory"]


def probe(one: DeviceInfo, other: DeviceInfo) -> Route:
    """Return the route of a copy from one device to another: "none" is needed within one device, "peer copy" is one
    from memory to memory (PeerCopyDevice), and "host memory" a download and an upload."""
    if one.request == other.request:
        return "none"
    direct = one.backend == other.backend and one.physical_id in other.peers
    return "peer copy" if direct else "host memory"
