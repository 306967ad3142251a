"""A model whose layers are on several devices writes what it writes on one."""

from __future__ import annotations

import time
from contextlib import closing
from functools import cache
from typing import Any

import pytest
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.request.request import Request
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.formats.synthetic_shapes import SHAPES
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.sampling import SamplingParams
from bitnet_core.testing.drawn import DrawnSource
from bitnet_hal.device import DeviceType, TransferMode
from bitnet_hal.errors import DeviceLostError, UsageError
from bitnet_hal.kernels.catalogue import STEP_FIELDS
from bitnet_hal.reference.device import NumpyDevice

PROMPTS = [[3, 1, 4, 1, 5], list(range(1, 70)), [9, 8, 7]]


def texts(engine: Engine, temperature: float = 0.0) -> list[list[int]]:
    """Return the tokens that the engine generates after each of PROMPTS, all at once."""
    params = SamplingParams(temperature=temperature, seed=1)
    requests: list[Request] = [engine.add_request(prompt, params, max_tokens=12) for prompt in PROMPTS]
    while engine.step():
        pass
    assert [request.error for request in requests] == [None] * len(PROMPTS)
    return [list(request.generated) for request in requests]


@cache
def alone(shape: str, temperature: float = 0.0) -> list[list[int]]:
    """Return the texts of a model on one device."""
    with closing(Engine(DrawnSource(shape=shape), NumpyDevice(), EngineOptions(max_sequences=4))) as engine:
        return texts(engine, temperature)


@pytest.mark.parametrize(
    ("shape", "counts", "temperature"),
    [
        ("bonsai-tiny", [1], 0.0),
        ("bonsai-tiny", [1], 0.8),
        ("bonsai2-tiny", [1], 0.0),
        ("bonsai2-tiny", [2], 0.8),
        ("bonsai2-tiny", [3], 0.0),
        ("bonsai2-tiny", [1, 1, 1], 0.0),
        ("maple-tiny", [1], 0.8),
    ],
)
def test_a_split_does_not_change_texts(faulty: Any, shape: str, counts: list[int], temperature: float) -> None:
    """On two devices, after each of the layers, and on one device for each layer."""
    before = [(faulty(index=at + 1), count) for at, count in enumerate(counts)]
    options = EngineOptions(max_sequences=4)
    with closing(Engine(DrawnSource(shape=shape), faulty(), options, before=before)) as engine:
        assert texts(engine, temperature) == alone(shape, temperature)
        assert list(engine.layers_by_device.values()) == [*counts, SHAPES[shape].n_layers - sum(counts)]
        launches = engine.kernel_launches_by_device
        assert all(launches[request].total() for request in engine.layers_by_device)


@pytest.mark.parametrize("shape", ["bonsai-tiny", "bonsai2-tiny"])
def test_prefixes_and_states_are_used_again(faulty: Any, shape: str) -> None:
    """The blocks of all devices, and the state checkpoints of delta nets."""
    options = EngineOptions(max_sequences=4)
    with closing(Engine(DrawnSource(shape=shape), faulty(), options, before=[(faulty(index=1), 1)])) as engine:
        assert texts(engine) == texts(engine) == alone(shape)
        assert engine.scheduler.counts["prefix_hits"] == 64


def test_deterministic_texts(faulty: Any) -> None:
    """No kernels are fused, on either device."""
    options = EngineOptions(max_sequences=4, deterministic=True)
    with closing(Engine(DrawnSource(), NumpyDevice(), options)) as whole:
        expected = texts(whole)
    with closing(Engine(DrawnSource(), faulty(), options, before=[(faulty(index=1), 1)])) as engine:
        assert texts(engine) == expected


def test_draft_tokens_are_not_verified_on_several_devices(faulty: Any) -> None:
    before = [(faulty(index=1), 1)]
    with pytest.raises(UsageError, match="draft tokens are verified on one device, and the layers are on several"):
        Engine(DrawnSource(), faulty(), EngineOptions(speculate="lookup"), before=before)
    with closing(Engine(DrawnSource(), faulty(), EngineOptions(), before=before)) as engine:
        assert engine.speculation.off == "draft tokens are verified on one device, and the layers are on several"
        request = engine.add_request([5, 6, 7, 8] * 12, max_tokens=24)
        while engine.step():
            pass
        assert (len(request.generated), engine.scheduler.counts["draft_tokens"]) == (24, 0)


def test_logits_are_the_same(faulty: Any) -> None:
    tokens = list(range(1, 150))
    whole = Engine(DrawnSource(), NumpyDevice(), EngineOptions())
    split = Engine(DrawnSource(), faulty(), EngineOptions(), before=[(faulty(index=1), 1)])
    with closing(whole), closing(split):
        assert (split.logits(tokens, 64) == whole.logits(tokens, 64)).all()


def test_texts_are_embedded(faulty: Any) -> None:
    lists = [[3, 1, 4], list(range(1, 70)), [9]]
    whole = Engine(SyntheticSource("embedding-tiny"), NumpyDevice(), EngineOptions())
    split = Engine(SyntheticSource("embedding-tiny"), faulty(), EngineOptions(), before=[(faulty(index=1), 1)])
    with closing(whole), closing(split):
        assert (split.embed(lists) == whole.embed(lists)).all()


def test_bytes_between_devices_are_those_of_the_hidden_rows(faulty: Any) -> None:
    """One download and one upload of x for each step, and the step buffer."""
    options = EngineOptions(max_sequences=1, speculate="off", stream_interval=1000)
    with closing(Engine(DrawnSource(), faulty(), options, before=[(faulty(index=1), 1)])) as engine:
        request = engine.add_request(PROMPTS[0], max_tokens=20)
        for _ in range(3):  # the prompt, and the first steps
            engine.step()
        before, moved = len(request.tokens), engine.moved_bytes
        engine.step()
        steps = len(request.tokens) - before
        assert steps > 1
        hidden, step = 4 * engine.config.hidden, 4 * STEP_FIELDS
        tokens = 4 * 65  # the ring, read once
        assert engine.moved_bytes - moved == steps * (2 * hidden + 2 * step) + tokens


def test_memory_is_planned_and_placed_by_device(capped: Any) -> None:
    info = {"type": DeviceType.GPU, "transfer": TransferMode.EXPLICIT_COPY}
    first, last = capped(8 << 20, index=1, **info), capped(8 << 20, **info)
    options = EngineOptions(max_sequences=2, prefill_chunk=32, context=128)
    source = DrawnSource(shape="bonsai2-tiny")
    with closing(Engine(source, last, options, before=[(first, 3)])) as engine:
        plans = engine.memory_plans()
        assert [device.used for device in (first, last)] == [plans["numpy:1"].loaded, plans["numpy:0"].loaded]
        for first_token in (1, 2):  # a request for each of the groups
            engine.add_request(list(range(first_token, 60)), max_tokens=9)
        for _ in range(5):
            engine.step()
        for part in engine.worker.parts:
            part.pool.trim()  # of smaller prompts
        assert [device.used for device in (first, last)] == [plans["numpy:1"].total, plans["numpy:0"].total]
        assert engine.memory()["weights_bytes"] == sum(plan.weights for plan in plans.values())
    assert (first.used, last.used) == (0, 0)


def test_devices_work_at_the_same_time(faulty: Any) -> None:
    """While one device computes the rows of some requests, the other one computes those of others."""
    busy: set[int] = set()
    together: list[set[int]] = []

    def slowly(index: int) -> Any:
        def work(*_: Any) -> None:
            assert index not in busy, "calls of one device overlap"
            busy.add(index)
            time.sleep(0.005)
            together.append(set(busy))
            busy.remove(index)

        return work

    devices = [faulty(index=1), faulty()]
    for device in devices:
        device.before["replay"] = slowly(device.info.index)
    with closing(Engine(DrawnSource(), devices[1], EngineOptions(max_sequences=4), before=[(devices[0], 1)])) as engine:
        assert texts(engine) == alone("bonsai-tiny")
    assert {0, 1} in together


@pytest.mark.parametrize("lost", [0, 1])
def test_if_a_device_is_lost_another_takes_the_whole_model(faulty: Any, lost: int) -> None:
    """The texts do not change."""
    devices = [faulty(index=1), faulty()]
    spare = faulty(index=2)

    def fail(*_: Any, **__: Any) -> None:
        if devices[lost].calls["replay"] > 3:
            raise DeviceLostError("gone", backend="numpy", operation="replay")

    devices[lost].before["replay"] = fail
    options = EngineOptions(max_sequences=4)
    engine = Engine(DrawnSource(), devices[1], options, before=[(devices[0], 1)], reopen=lambda _: spare)
    with closing(engine):
        assert texts(engine) == alone("bonsai-tiny")
        assert engine.device is spare
        assert engine.layers_by_device == {"numpy:2": 2}


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_device_that_nothing_replaces_is_named_by_every_later_call(faulty: Any, lost: int) -> None:
    """Its plugin is not called after it was closed, which would look like a fault of the plugin."""
    devices = [faulty(index=1), faulty()]

    def fail(*_: Any, **__: Any) -> None:
        raise DeviceLostError("pulled out", backend="numpy", operation="replay")

    with closing(Engine(DrawnSource(), devices[1], EngineOptions(), before=[(devices[0], 1)])) as engine:
        engine.add_request([1, 2, 3], max_tokens=4)
        devices[lost].before["replay"] = fail
        with pytest.raises(DeviceLostError, match=r"^numpy: pulled out"):
            texts(engine)
        for use in (engine.step, engine.memory, engine.cached_blocks, lambda: engine.logits([1, 2])):
            with pytest.raises(
                DeviceLostError, match=r"the model was lost with its device \(numpy: pulled out.*Load it"
            ):
                use()


@pytest.mark.parametrize("layers", [2, 3])
def test_each_device_needs_a_layer(faulty: Any, layers: int) -> None:
    with pytest.raises(UsageError, match="each device needs at least one layer, and the model has 2"):
        Engine(DrawnSource(), faulty(), EngineOptions(), before=[(faulty(index=1), layers)])


def test_less_memory_is_taken_while_a_text_runs(capped: Any, caplog: Any) -> None:
    """The device before is too small for the whole chunk: recovery shrinks the steps of both."""
    info = {"type": DeviceType.GPU, "transfer": TransferMode.EXPLICIT_COPY}
    source = DrawnSource(shape="bonsai2-tiny")
    options = EngineOptions(max_sequences=4)
    with closing(Engine(source, capped(64 << 20, **info), options)) as one:
        expected = texts(one)  # not those of a device that wraps weights: BLAS may round products of joined ones apart
    first = capped(5 << 20, index=1, **info)
    with closing(Engine(source, capped(64 << 20, **info), options, before=[(first, 2)])) as one:
        assert texts(one) == expected
    assert first.peak <= 5 << 20
