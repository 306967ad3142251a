"""Several devices by their requests: cards of a driver that come and go, found in processes of their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bitnet_core.api import Model, load
from bitnet_core.api.replicas import ReplicaOpener, SeveralDevices, load_replicas
from bitnet_core.engine.replicas import arrivals
from bitnet_core.engine.replicas import replica as replica_module
from bitnet_core.engine.replicas.replica_set import ReplicaSet
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.loading import LoadOptions
from bitnet_hal.discovery.request import DeviceRequest, parse_requests
from bitnet_hal.discovery.selection import devices
from bitnet_hal.errors import DeviceNotFoundError, UsageError

CARDS = """
import time
from dataclasses import replace
from pathlib import Path
from bitnet_hal.errors import DeviceLostError
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyDevice

CARDS = Path({path!r})

class Card(NumpyDevice):
    def _replay(self, recording):
        time.sleep(0.005)  # 200 tokens take a second: no text ends before its card is pulled out
        if self.info.physical_id not in CARDS.read_text():
            raise DeviceLostError("pulled out", backend="vulkan")
        super()._replay(recording)

def listed(self):
    own = dict(backend="vulkan", type=DeviceType.GPU, name="card")
    places = CARDS.read_text().split()
    return [replace(numpy_info(), index=at, physical_id=place, **own) for at, place in enumerate(places)]

Backend.devices = listed
Backend.open = lambda self, index: Card(self.devices()[index])
"""
A, B, C = "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"


@pytest.fixture
def plugged(install_plugin: Any, tmp_path: Path) -> Callable[..., None]:
    """plugged(*places): the cards that the driver shows from now on."""
    path = tmp_path / "cards"
    path.write_text(f"{A} {B}")
    install_plugin("vulkan", CARDS.format(path=str(path)))

    def plug(*places: str) -> None:
        new = path.with_suffix(".new")
        new.write_text(" ".join(places))
        new.replace(path)  # at once: a driver that reads an empty file has lost all cards

    return plug


def test_the_devices_of_a_list_and_of_all(plugged: Callable[..., None]) -> None:
    several = SeveralDevices(parse_requests("vulkan:1,numpy"))
    assert (several.required, several.first()) == (True, DeviceRequest("vulkan", 1))
    assert several.names("vulkan:1") == ["numpy"]
    with pytest.raises(DeviceNotFoundError):
        several.open("vulkan:7")
    with pytest.raises(UsageError, match="'vulkan:1,all' names devices beside 'all'"):
        parse_requests("vulkan:1,all")
    every = SeveralDevices(parse_requests("all"))
    assert (every.required, every.first()) == (False, DeviceRequest("vulkan", 0))
    assert every.names("vulkan:0") == ["vulkan:1"]


def test_a_device_with_two_names_is_used_once(plugged: Callable[..., None]) -> None:
    several = SeveralDevices(parse_requests("vulkan,vulkan:0"))
    first = several.open("vulkan")
    try:
        with pytest.raises(UsageError, match="vulkan and vulkan:0 are the same device, vulkan:0: name it once"):
            several.open("vulkan:0")
    finally:
        first.close()


def test_a_card_is_known_by_its_place(plugged: Callable[..., None]) -> None:
    first, second = (info for info in devices() if info.backend == "vulkan")
    named = SeveralDevices(parse_requests("vulkan:0,vulkan:1"))
    plugged(B)  # it is vulkan:0 now
    assert named.arrived({"vulkan:0": first}, [second], new=False) == {}
    assert named.arrived({"vulkan:0": None}, [second], new=False) == {}
    assert named.arrived({"vulkan:1": second}, [], new=False) == {"vulkan:1": second}
    plugged(A, B, C)
    every = SeveralDevices(parse_requests("all"))
    assert every.arrived({"vulkan:0": first}, [second], new=False) == {"vulkan:0": first}
    found = every.arrived({}, [first, second], new=True)
    assert {name: info.physical_id for name, info in found.items()} == {"vulkan:2": C}


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_card_is_pulled_out_in_mid_text_and_put_back(
    plugged: Callable[..., None], run_all: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(replica_module, "RETURN_SECONDS", 0.0)
    options = EngineOptions(stream_interval=1e-9, max_sequences=4)
    several = SeveralDevices(parse_requests("vulkan:0,vulkan:1"))
    opener = ReplicaOpener(SyntheticSource("tiny"), LoadOptions(), options)
    made: ReplicaSet[Model] = ReplicaSet(lambda: load_replicas(opener, several), lambda engine, outputs: None)
    made.start()
    try:
        until(lambda: [one.state for one in made.devices()] == ["ready", "ready"])
        assert made.model is not None
        engine = made.model.engine
        requests = [engine.new_request([at, 2, 3], max_tokens=200) for at in range(6)]
        made.submit(requests)
        until(lambda: all(request.generated_tokens > 3 for request in requests))
        plugged(B)
        until(lambda: [one.state for one in made.devices()] == ["away", "ready"])
        assert "pulled out" in made.devices()[0].reason
        plugged(A, B)
        until(lambda: [one.state for one in made.devices()] == ["ready", "ready"])
        until(lambda: all(request.finish_reason for request in requests))
        assert made.devices()[0].device == "vulkan:0"
    finally:
        made.close(10)
    with load(SyntheticSource("tiny"), "numpy") as alone:
        expected = [alone.engine.add_request([at, 2, 3], max_tokens=200) for at in range(6)]
        run_all(alone.engine)
    assert [request.generated for request in requests] == [request.generated for request in expected]
    assert {request.finish_reason for request in requests} == {"length"}
