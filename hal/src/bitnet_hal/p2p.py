"""The route of a copy between two devices."""

from __future__ import annotations

from typing import Literal

from bitnet_hal.device import DeviceInfo

Route = Literal["none", "peer copy", "host memory"]


def probe(one: DeviceInfo, other: DeviceInfo) -> Route:
    """Return the route of a copy from one device to another: "none" within one device, "peer copy" from memory to
    memory (PeerCopyDevice), "host memory" for a download and an upload."""
    if one.request == other.request:
        return "none"
    direct = one.backend == other.backend and one.physical_id in other.peers
    return "peer copy" if direct else "host memory"
