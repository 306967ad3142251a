"""The plan's bytes are those that are allocated, and `predict` says yes exactly where a model loads."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.fit import predict
from bitnet_core.formats.names import tables
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.formats.synthetic_shapes import SHAPES
from bitnet_core.model.config import ModelConfig
from bitnet_core.options.engine import EngineOptions
from bitnet_core.plan import lm_head_int8, weight_count
from bitnet_core.plan.kernels import LM_HEAD_INT8
from bitnet_core.plan.upload import upload
from bitnet_core.plan.weight_count import weight_sizes
from bitnet_core.plan.weight_sizes import table_names
from bitnet_hal.device import DeviceType, TransferMode
from bitnet_hal.errors import OutOfMemoryError
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyDevice

FAMILIES = ("tiny", "bonsai-tiny", "bonsai2-tiny", "maple-tiny", "embedding-tiny")
"""Shapes like 2B-4T, Bonsai (a scale per 128 columns), Bonsai 2 (delta nets, rotated weights), Maple (experts, windows)
and BitNet-embedding (norms of every input)."""
SWEPT = FAMILIES[:3]
"""Shapes whose least memory is searched."""
PLENTY = 1 << 40


@pytest.mark.parametrize("transfer", list(TransferMode))
@pytest.mark.parametrize("binding", [0, 1 << 19])
@pytest.mark.parametrize("shape", FAMILIES)
def test_weights_take_what_was_planned(capped: Any, shape: str, binding: int, transfer: TransferMode) -> None:
    device = capped(PLENTY, transfer=transfer, max_binding=binding, max_allocation=0)
    source = SyntheticSource(shape)
    sizes = weight_sizes(source, source.config, device.info, 100)
    weights = upload(source, device, 100)
    assert (weights.nbytes, weights.wrapped_bytes) == (sizes.allocated, sizes.wrapped)
    assert device.used == sizes.allocated


@pytest.mark.parametrize("transfer", list(TransferMode))
@pytest.mark.parametrize(("kind", "block"), [("tensor", 0), ("row", 0), ("block", 64), ("block", 256)])
@pytest.mark.parametrize("style", ["silu", "llama", "offline"])
def test_weights_of_every_kind_of_scale(
    capped: Any, tiny: Any, style: str, kind: str, block: int, transfer: TransferMode
) -> None:
    device = capped(PLENTY, transfer=transfer)
    source = tiny.TinySource(tiny.CONFIGS[style], 0, kind, block)
    sizes = weight_sizes(source, source.config, device.info, 64)
    weights = upload(source, device, 64)
    assert (weights.nbytes, weights.wrapped_bytes) == (sizes.allocated, sizes.wrapped)


def test_the_shapes_of_published_models() -> None:
    """With the scales of blocks, an eighth of the bytes of Bonsai 1.7B's codes, and 1 % of rotary table and vectors."""
    source = SyntheticSource("bonsai-1.7b")
    info = replace(NumpyDevice().info, transfer=TransferMode.EXPLICIT_COPY)
    codes = sum(tensor.nbytes for tensor in source.tensors)
    planned = weight_sizes(source, source.config, info, 4096).allocated
    assert planned == pytest.approx(codes * (1 + 4 / 32) * 1.01, rel=0.01)


def test_parts_of_a_model_add_up() -> None:
    config = SHAPES["bonsai2-tiny"]
    parts = [config.part(0, 1), config.part(1, 2), config.part(3, 1)]
    assert [part.layers_before for part in parts] == [0, 1, 3]
    assert [table_names(part) for part in parts] == [("token_embd",), (), ("output",)]
    assert sum(part.attention_layers for part in parts) == config.attention_layers
    assert sum(part.state_bytes for part in parts) == config.state_bytes
    assert config.part(0, config.n_layers) is config
    tied = SHAPES["tiny"]
    assert [table_names(part) for part in (tied, tied.part(0, 1), tied.part(1, 1))] == [("token_embd",)] * 3
    assert table_names(config) == tuple(tables(config))


@pytest.mark.parametrize("transfer", list(TransferMode))
@pytest.mark.parametrize("shape", FAMILIES[:4])
def test_an_engine_takes_what_was_planned(capped: Any, shape: str, transfer: TransferMode) -> None:
    """Also its scratch for a whole chunk of a prompt, which is allocated when it is needed."""
    device = capped(PLENTY, type=DeviceType.GPU, transfer=transfer, total_memory=1 << 30)
    device.free_memory = lambda: 1 << 30
    options = EngineOptions(max_sequences=3, prefill_chunk=32, context=128)
    fit = predict(SyntheticSource(shape), device, options)
    with closing(Engine(SyntheticSource(shape), device, options)) as engine:
        assert device.used == fit.wanted.loaded
        assert engine.memory_plan() == fit.wanted
        engine.add_request(list(range(1, 40)), max_tokens=2)
        engine.step()
        assert device.used == fit.wanted.total
        memory = engine.memory()
        assert memory["weights_bytes"] == fit.wanted.weights
        assert memory["wrapped_weights_bytes"] == fit.wanted.wrapped


@pytest.mark.parametrize("choice", ["on", "auto", "off"])
def test_an_int8_head_is_planned(capped: Any, choice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm_head_int8, "LEAST_TABLE", 0)
    device = capped(PLENTY, type=DeviceType.CPU, kernels=numpy_info().kernels | LM_HEAD_INT8)
    options = EngineOptions(max_sequences=2, prefill_chunk=16, context=128, lm_head_int8=choice)
    fit = predict(SyntheticSource("tiny"), device, options)
    with closing(Engine(SyntheticSource("tiny"), device, options)) as engine:
        assert device.used == fit.wanted.loaded
        assert bool(fit.wanted.lm_head_int8) == bool(engine.weights.lm_head_int8) == (choice != "off")


def _loads(capped: Any, shape: str, cap: int, options: EngineOptions, info: dict[str, Any]) -> tuple[bool, bool]:
    """Return whether `predict` says that the model loads, and whether it does."""
    source = SyntheticSource(shape)
    device = capped(cap, **info)
    predicted = predict(source, device, options).loads
    try:
        engine = Engine(source, device, options)
    except OutOfMemoryError:
        device.close()
        return predicted, False
    engine.close()
    assert device.peak <= cap
    return predicted, True


@pytest.mark.parametrize(
    ("kind", "transfer"),
    [(DeviceType.GPU, TransferMode.EXPLICIT_COPY), (DeviceType.CPU, TransferMode.UNIFIED)],
    ids=["gpu", "cpu"],
)
@pytest.mark.parametrize("shape", SWEPT)
def test_yes_is_said_exactly_where_a_model_loads(
    capped: Any, shape: str, kind: DeviceType, transfer: TransferMode
) -> None:
    """A search for the least cap with which the model loads, and caps beside it and far from it."""
    info = {"type": kind, "transfer": transfer, "kernels": numpy_info().kernels | {"repack_q2_0"}}
    options = EngineOptions(max_sequences=4, prefill_chunk=64, context=256)
    least, enough = 0, 16 << 20
    while enough - least > 1:
        middle = (least + enough) // 2
        predicted, loaded = _loads(capped, shape, middle, options, info)
        assert predicted == loaded, f"with a cap of {middle:,} bytes"
        least, enough = (least, middle) if loaded else (middle, enough)
    for cap in (enough - 4096, enough - 1, enough, enough + 1, enough + 4096, 2 * enough):
        assert _loads(capped, shape, cap, options, info) == (cap >= enough, cap >= enough)


def test_a_config_has_no_other_devices() -> None:
    config: ModelConfig = SHAPES["tiny"]
    assert (config.layers_before, config.layers_after) == (0, 0)


def test_equal_counts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    source = SyntheticSource("tiny")
    info = numpy_info()
    first = weight_sizes(source, source.config, info, 64)
    assert weight_sizes(source, source.config, info, 1 << 16).allocated > first.allocated
    monkeypatch.setattr(weight_count, "_Counter", lambda *_: pytest.fail("counted again"))
    assert weight_sizes(source, source.config, replace(info, name="another"), 64) == first
