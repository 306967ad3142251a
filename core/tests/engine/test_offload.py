"""Layers for which a GPU has no memory run on the CPU; the texts are the same."""

from __future__ import annotations

import logging
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from bitnet_core.doctor.fits import _fit
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.fit import predict
from bitnet_core.engine.placement import (
    LEAST_ROOM,
    balanced,
    most_layers,
    needed_bytes,
    offloaded_layers,
    split_layers,
)
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.formats.synthetic_shapes import SHAPES
from bitnet_core.options.engine import EngineOptions
from bitnet_core.testing.drawn import DrawnSource
from bitnet_hal.device import DeviceType, TransferMode
from bitnet_hal.errors import OutOfMemoryError, UsageError
from bitnet_hal.reference.device import NumpyDevice

SHAPE = "bonsai2-tiny"
LAYERS = SHAPES[SHAPE].n_layers
CARD = {"type": DeviceType.GPU, "transfer": TransferMode.EXPLICIT_COPY}
SIZES: dict[str, Any] = {"max_sequences": 2, "context": 128}


def text(engine: Engine) -> list[int]:
    """Return 8 greedy tokens after a prompt of 40."""
    request = engine.add_request(range(1, 41), max_tokens=8)
    while engine.step():
        pass
    assert request.error is None
    return list(request.generated)


@cache
def expected() -> list[int]:
    with closing(Engine(DrawnSource(shape=SHAPE), NumpyDevice(), EngineOptions(**SIZES))) as engine:
        return text(engine)


@pytest.mark.parametrize("layers", range(LAYERS))
def test_any_number_of_layers_can_be_offloaded(capped: Any, layers: int) -> None:
    """The card's memory is that of the layers that stay, and no byte of the others passes to it."""
    options = EngineOptions(**SIZES, offload=layers)
    source = DrawnSource(shape=SHAPE)
    card = capped(1 << 30, **CARD)
    with closing(Engine(source, card, options, helper=NumpyDevice)) as engine:
        assert engine.layers_by_device.get("numpy:0") == LAYERS - layers or layers
        assert [part.config.n_layers for part in engine.worker.parts] == [n for n in (layers, LAYERS - layers) if n]
        assert text(engine) == expected()
        plan = engine.worker.plan(engine.worker.parts[-1])
    assert card.peak <= plan.total


@pytest.mark.parametrize("cap", [8 << 20, 2500 << 10, 2 << 20])
def test_a_card_of_any_size_ends_in_text(capped: Any, cap: int, caplog: Any) -> None:
    card = capped(cap, **CARD)
    source = DrawnSource(shape=SHAPE)
    options = EngineOptions(**SIZES)
    said = _fit(source, card).message
    predicted = offloaded_layers(source, options, card)
    with caplog.at_level(logging.WARNING), closing(Engine(source, card, options, helper=NumpyDevice)) as engine:
        assert text(engine) == expected()
        offloaded = LAYERS - engine.worker.parts[-1].config.n_layers
    assert card.peak <= cap
    assert ("layers, the CPU the other" in caplog.text) == (offloaded > 0)
    assert offloaded >= predicted
    assert (f"with {predicted} of {LAYERS} layers on the CPU" in said) == (predicted > 0)


def _loads(capped: Any, cap: int) -> tuple[bool, bool]:
    """Return whether the doctor says yes, and whether the model loads."""
    source, options = SyntheticSource(SHAPE), EngineOptions()
    card = capped(cap, **CARD)
    said = ": yes, " in _fit(source, card).message
    try:
        engine = Engine(source, card, options, helper=NumpyDevice)
    except OutOfMemoryError:
        card.close()
        return said, False
    engine.close()
    assert card.peak <= cap
    return said, True


def test_the_doctor_says_yes_exactly_where_a_card_and_the_cpu_load_a_model(capped: Any) -> None:
    least, enough = 0, 16 << 20
    while enough - least > 1:
        middle = (least + enough) // 2
        said, loaded = _loads(capped, middle)
        assert said == loaded, f"with a cap of {middle:,} bytes"
        least, enough = (least, middle) if loaded else (middle, enough)
    source = SyntheticSource(SHAPE)
    whole = predict(source, capped(1 << 30, **CARD), EngineOptions()).least.loaded
    assert enough < whole  # one layer of four, beside the head
    for cap in (enough - 1, enough, whole - 1, whole, 2 * whole):
        assert _loads(capped, cap) == (cap >= enough, cap >= enough)


@pytest.mark.parametrize(
    ("model", "shape", "gibibytes"),
    [("Bonsai 8B", "bonsai-8b", 2), ("Bonsai 2 27B", "bonsai2-27b", 6), ("Bonsai 2 27B", "bonsai2-27b", 4)],
)
def test_the_page_says_what_the_doctor_says(capped: Any, model: str, shape: str, gibibytes: int) -> None:
    card = capped(gibibytes << 30, **CARD, max_binding=0, max_allocation=0)
    said = _fit(SyntheticSource(shape), card).message.removeprefix("numpy:0: ").partition(";")[0]
    page = (Path(__file__).parents[3] / "docs" / "several-devices.md").read_text()
    assert f"| {model} | {gibibytes} GiB | {said} |" in page


def test_memory_that_runs_out_later_moves_layers_too(capped: Any, caplog: Any) -> None:
    """Other programs take the card's memory while a text is being written."""
    card = capped(1 << 30, **CARD)
    least = predict(DrawnSource(shape=SHAPE), card, EngineOptions(**SIZES)).least.loaded
    with closing(Engine(DrawnSource(shape=SHAPE), card, EngineOptions(**SIZES), helper=NumpyDevice)) as engine:
        request = engine.add_request(range(1, 41), max_tokens=8)
        engine.step()
        engine.step()
        engine.drop_scratch()
        card.cap = least + (100 << 10)  # the whole model has no room for the prompt
        engine.add_request(range(50, 90), max_tokens=2)
        with caplog.at_level(logging.WARNING):
            while engine.step():
                pass
        assert request.generated == expected()
        assert len(engine.layers_by_device) == 1  # numpy:0 twice, by its name
        assert len(engine.worker.parts) == 2
    assert "moved layers to the CPU" in caplog.text


def test_what_cannot_be_offloaded(capped: Any, faulty: Any) -> None:
    source = SyntheticSource(SHAPE)
    with pytest.raises(UsageError, match="offload 4: the model has 4 layers, and one must stay"):
        offloaded_layers(source, EngineOptions(offload=4), capped(1 << 30, **CARD))
    with pytest.raises(UsageError, match="offload 1: numpy:0 is a CPU already"):
        offloaded_layers(source, EngineOptions(offload=1), faulty())
    assert offloaded_layers(source, EngineOptions(), capped(1000, type=DeviceType.CPU)) == 0
    small = capped(2 << 20, **CARD)
    assert offloaded_layers(source, EngineOptions(), small) > 0
    assert offloaded_layers(source, EngineOptions(offload="none"), small) == 0
    with pytest.raises(OutOfMemoryError):
        Engine(source, small, EngineOptions(offload="none"), helper=NumpyDevice)


def test_a_helper_is_closed_if_loading_fails(capped: Any) -> None:
    helpers: list[NumpyDevice] = []

    def helper() -> NumpyDevice:
        helpers.append(NumpyDevice())
        return helpers[-1]

    with pytest.raises(OutOfMemoryError):
        Engine(SyntheticSource(SHAPE), capped(1 << 20, **CARD), EngineOptions(), helper=helper)
    assert all(device._closed for device in helpers)


def test_layers_are_divided_by_speed_and_memory() -> None:
    assert balanced(30, [30, 30], [1.0, 1.0], 0.0) == [15, 15]
    assert balanced(30, [30, 30], [1.0, 2.0], 0.0) == [20, 10]
    assert balanced(30, [12, 30], [1.0, 2.0], 0.0) == [12, 18]
    assert balanced(8, [8, 8, 8], [1.0, 1.0, 100.0], 0.0) == [4, 3, 1]
    assert balanced(36, [36, 36], [42.0, 42.0], 100.0) == [19, 17]
    assert balanced(8, [8, 8], [1.0, 1.0], 20.0) == [7, 1]


def test_a_split_counts_memory_and_measures(capped: Any) -> None:
    source, options = SyntheticSource(SHAPE), EngineOptions(**SIZES)
    roomy, small = capped(1 << 30, **CARD), capped(0, index=1, **CARD)
    small.cap = needed_bytes(source, options, small, source.config.part(0, 1), 2)
    assert most_layers(source, options, small, first=True) == 1
    assert split_layers(source, options, [small, roomy]) == [1, 3]
    assert (small.used, roomy.used) == (0, 0)
    small.cap = needed_bytes(source, options, small, source.config.part(0, 1), 2, LEAST_ROOM)
    with pytest.raises(OutOfMemoryError, match=r"memory for 1 of 4 layers together \(numpy:1 1, numpy:1 0\)"):
        split_layers(source, options, [small, small])


def test_a_device_without_memory_for_a_layer_is_left_out_of_a_split(capped: Any) -> None:
    source, options = SyntheticSource(SHAPE), EngineOptions(**SIZES)
    tiny, first, last = capped(1000, **CARD), capped(1 << 30, index=1, **CARD), capped(1 << 30, index=2, **CARD)
    for devices in ([tiny, first, last], [first, tiny, last]):
        counts = split_layers(source, options, devices)
        assert counts[devices.index(tiny)] == 0
        assert sum(counts) == LAYERS
        assert min(count for device, count in zip(devices, counts, strict=True) if device is not tiny) > 0
    assert split_layers(source, options, [tiny, last]) == [0, LAYERS]
    with pytest.raises(OutOfMemoryError, match=r"memory for 3 of 4 layers together \(numpy:1 3, numpy:0 0\)"):
        split_layers(source, options, [first, tiny])


def test_a_split_that_fits_with_fewer_requests_and_rows_ends_in_text(capped: Any) -> None:
    source, options = DrawnSource(shape=SHAPE), EngineOptions(**SIZES)
    caps = [
        needed_bytes(source, options, capped(0, **CARD), source.config.part(2 * at, 2), 2, LEAST_ROOM) for at in (0, 1)
    ]
    devices = [capped(caps[0], **CARD), capped(caps[1], index=1, **CARD)]
    assert (
        most_layers(source, options, devices[0], first=True) + most_layers(source, options, devices[1], last=True) < 4
    )
    assert split_layers(source, options, devices) == [2, 2]
    with closing(Engine(source, devices[1], options, before=[(devices[0], 2)])) as engine:
        text(engine)
    assert [device.peak <= cap for device, cap in zip(devices, caps, strict=True)] == [True, True]
