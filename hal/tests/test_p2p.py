"""Copies between devices go through host memory."""

from __future__ import annotations

from dataclasses import replace

from bitnet_hal import p2p
from bitnet_hal.reference.describe import numpy_info


def test_the_route_between_devices() -> None:
    here = numpy_info()
    assert p2p.probe(here, here) == "none"
    for other in (replace(here, index=1), replace(here, backend="cuda")):
        assert p2p.probe(here, other) == p2p.probe(other, here) == "host memory"
