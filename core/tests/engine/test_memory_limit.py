"""The option device_memory: a model takes no more of a device, and is placed as if the device had no more."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import bitnet_core
import pytest
from bitnet_core.doctor.fits import _fit
from bitnet_core.engine.capacity import memory_wanted
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.fit import predict
from bitnet_core.engine.memory_limit import account_of, limit_memory
from bitnet_core.engine.placement import needed_bytes, offloaded_layers, split_layers
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.formats.synthetic_shapes import SHAPES
from bitnet_core.options.engine import EngineOptions
from bitnet_core.testing.drawn import DrawnSource
from bitnet_hal.device import DeviceType, MemoryKind, TransferMode
from bitnet_hal.errors import OutOfMemoryError
from bitnet_hal.reference.device import NumpyDevice

SHAPE = "bonsai2-tiny"
LAYERS = SHAPES[SHAPE].n_layers
SIZES: dict[str, Any] = {"max_sequences": 2, "context": 128}


@pytest.fixture
def card(capped: Any) -> Any:
    """card(limit): a GPU with 80 GiB of which a model may take `limit` bytes."""

    def make(limit: int | None = None, **info: Any) -> Any:
        large = {"type": DeviceType.GPU, "transfer": TransferMode.EXPLICIT_COPY, "total_memory": 80 << 30, **info}
        device = capped(80 << 30, **large)
        limit_memory(device, limit)
        return device

    return make


def text(engine: Engine) -> list[int]:
    """Return 8 greedy tokens after a prompt of 40."""
    request = engine.add_request(range(1, 41), max_tokens=8)
    while engine.step():
        pass
    assert request.error is None
    return list(request.generated)


def test_a_device_counts_what_it_gives(card: Any) -> None:
    device = card(1000)
    assert (device.free_memory(), device.info.total_memory) == (1000, 1000)
    first = device.alloc(600)
    with pytest.raises(OutOfMemoryError, match="device_memory allows 1,000, of which 400 are left") as caught:
        device.alloc(401)
    assert (caught.value.requested, caught.value.free) == (401, 400)
    pinned = device.alloc(5000, MemoryKind.HOST)  # memory of the host is not the device's
    device.alloc(400)
    assert device.free_memory() == 0
    device.free(pinned)
    device.free(device.wrap(memoryview(bytes(4096))))
    device.free(first)
    assert device.free_memory() == 600


def test_an_allocation_that_fails_counts_nothing(card: Any) -> None:
    device = card(1000)
    device.cap = 100
    with pytest.raises(OutOfMemoryError, match="full"):
        device.alloc(500)
    assert account_of(device).left == 1000  # type: ignore[union-attr]  # it has one
    assert device.free_memory() == 100  # others have taken the rest


def test_a_driver_that_reports_no_free_memory_has_the_limit(faulty: Any) -> None:
    class Silent(faulty):  # type: ignore[misc]  # a fixture's class
        def free_memory(self) -> int:
            return -1

    device = Silent()
    limit_memory(device, 1 << 20)
    assert device.free_memory() == 1 << 20


def test_one_device_that_is_opened_twice_has_one_limit(card: Any) -> None:
    first, other = card(1000), card(index=1)
    again = card()
    limit_memory(again, 1000, beside=first)
    limit_memory(other, 1000, beside=first)
    first.alloc(700)
    assert (again.free_memory(), other.free_memory()) == (300, 1000)
    limit_memory(first, 5000)  # a device keeps its limit
    assert first.free_memory() == 300


@pytest.mark.parametrize("limit", [8 << 20, 2500 << 10, 2 << 20])
def test_a_limited_card_ends_in_the_text_of_a_card_of_that_size(card: Any, limit: int) -> None:
    options = EngineOptions(**SIZES)
    with closing(Engine(DrawnSource(shape=SHAPE), NumpyDevice(), options)) as engine:
        expected = text(engine)
    device = card(limit)
    with closing(Engine(DrawnSource(shape=SHAPE), device, options, helper=NumpyDevice)) as engine:
        assert text(engine) == expected
    assert device.peak <= limit
    assert account_of(device).used == 0  # type: ignore[union-attr]  # it has one


@pytest.mark.parametrize("shape", ["maple-tiny", "embedding-tiny", "tiny"])
def test_the_doctor_says_yes_exactly_from_the_limit_on_with_which_a_model_loads(card: Any, shape: str) -> None:
    def loads(limit: int) -> tuple[bool, bool]:
        source, device = SyntheticSource(shape), card(limit)
        said = ": yes, " in _fit(source, device).message
        try:
            Engine(source, device, EngineOptions(), helper=NumpyDevice).close()
        except OutOfMemoryError:
            return said, False
        finally:
            assert device.peak <= limit
        return said, True

    least, enough = 0, 16 << 20
    while enough - least > 1:
        middle = (least + enough) // 2
        said, loaded = loads(middle)
        assert said == loaded, f"with a limit of {middle:,} bytes"
        least, enough = (least, middle) if loaded else (middle, enough)
    whole = predict(SyntheticSource(shape), card(), EngineOptions()).least.loaded
    for limit in (enough - 1, enough, whole - 1, whole, 2 * whole):
        assert loads(limit) == (limit >= enough, limit >= enough)


def test_a_limited_card_is_planned_as_one_of_that_size(card: Any, capped: Any) -> None:
    """A large card computes prompts in more rows, which a small one has no memory for."""
    source, options = SyntheticSource("bonsai2-27b"), EngineOptions()
    for limit in (6 << 30, 4 << 30):
        limited = card(limit)
        like = capped(limit, type=DeviceType.GPU, transfer=TransferMode.EXPLICIT_COPY, total_memory=limit)
        assert predict(source, limited, options) == predict(source, like, options)
        assert offloaded_layers(source, options, limited) == offloaded_layers(source, options, like) > 0


def test_a_split_keeps_to_the_limit_of_each_device(card: Any) -> None:
    source, options = DrawnSource(shape=SHAPE), EngineOptions(**SIZES)
    limits = [
        needed_bytes(source, options, card(), source.config.part(0, 1), 2),
        needed_bytes(source, options, card(), source.config.part(1, 3), 2),
    ]
    devices = [card(limits[0]), card(limits[1], index=1)]
    assert split_layers(source, options, devices) == [1, 3]
    with closing(Engine(source, devices[1], options, before=[(devices[0], 1)])) as engine:
        text(engine)
    assert [device.peak <= limit for device, limit in zip(devices, limits, strict=True)] == [True, True]


def test_models_beside_others_are_not_unloaded_for_more_than_the_limit(card: Any) -> None:
    source, device = SyntheticSource("bonsai-8b"), card()
    wanted = memory_wanted(EngineOptions(), source, device)
    limited = memory_wanted(EngineOptions(device_memory=8 << 30), source, device)
    assert wanted.total > 8 << 30 == limited.total
    assert limited == replace(wanted, kv_cache=limited.kv_cache)


def test_the_option_reaches_the_device_the_draft_model_and_the_error() -> None:
    with bitnet_core.load(None, "numpy", device_memory=64 << 20) as model:
        account = account_of(model.device)
        assert account is not None
        assert account.limit == 64 << 20
        assert 0 < account.used <= 64 << 20
        alone = account.used
    drafting: Any = {"draft_model": "stories", "deterministic": True}
    with bitnet_core.load(None, "numpy", device_memory=64 << 20, **drafting) as model:
        account = account_of(model.device)
        assert account is not None
        assert alone < account.used <= 64 << 20
    with pytest.raises(OutOfMemoryError, match=r"no memory for the draft model.*without a draft model$"):
        bitnet_core.load(None, "numpy", device_memory=7 << 20, **drafting)
    with pytest.raises(OutOfMemoryError, match="device_memory allows 1,000"):
        bitnet_core.load(None, "numpy", device_memory=1000)
