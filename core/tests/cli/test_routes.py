"""The ways of bytes between devices, as `bitnet devices -v` prints them."""

from __future__ import annotations

from dataclasses import replace

from bitnet_core.cli.devices import _routes
from bitnet_hal.reference.describe import numpy_info


def test_devices_that_read_each_other_are_named_apart() -> None:
    cards = [replace(numpy_info(), backend="cuda", index=index, physical_id=f"card {index}") for index in range(3)]
    cards[0] = replace(cards[0], peers=frozenset({"card 1"}))
    cards[1] = replace(cards[1], peers=frozenset({"card 0"}))
    cards.append(numpy_info())
    assert _routes(cards[0], cards) == ["to cuda:1: from memory to memory", "to cuda:2, numpy:0: through host memory"]
    assert _routes(cards[3], cards) == ["to cuda:0, cuda:1, cuda:2: through host memory"]
