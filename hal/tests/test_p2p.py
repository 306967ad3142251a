"""The way of bytes between two devices."""

from __future__ import annotations

from dataclasses import replace

from bitnet_hal import p2p
from bitnet_hal.reference.describe import numpy_info


def test_the_route_between_devices() -> None:
    here = replace(numpy_info(), physical_id="0000:01:00.0")
    assert p2p.probe(here, here) == "none"
    for other in (replace(here, index=1), replace(here, backend="cuda")):
        assert p2p.probe(here, other) == p2p.probe(other, here) == "host memory"
    peer = replace(here, index=1, physical_id="0000:02:00.0", peers=frozenset({"0000:01:00.0"}))
    assert p2p.probe(here, peer) == "peer copy"  # it reads the memory of the other
    assert p2p.probe(peer, here) == "host memory"
    assert p2p.probe(here, replace(peer, backend="cuda")) == "host memory"
