"""A tiny mixture of experts with sliding windows (Maple's kind, TQ1_0 and TQ2_0) gives the logits of maple_model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import bitnet_core
import numpy as np
import numpy.typing as npt
import pytest
from bitnet_core.engine.engine import Engine
from bitnet_core.formats.convert.convert import convert
from bitnet_core.formats.open import open_model
from bitnet_core.measure.benchmark import bytes_per_token
from bitnet_core.model.config import Experts, Windows
from bitnet_core.model.source import ModelSource
from bitnet_core.options.engine import EngineOptions
from bitnet_core.plan.memory import plan_memory
from bitnet_hal.errors import UnsupportedError, UsageError
from bitnet_hal.kernels.catalogue import EXPERT_KERNELS
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyDevice

MAPLE = Path(__file__).parent / "maple"
FILE = MAPLE / "TQ.gguf"
Rows = npt.NDArray[np.float32]


@pytest.fixture
def source() -> Iterator[ModelSource]:
    opened = open_model(FILE, strict=True)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    with np.load(MAPLE / "reference.npz") as archive:
        return dict(archive)


@pytest.fixture
def engine(source: ModelSource) -> Iterator[Engine]:
    made = Engine(source, NumpyDevice(), EngineOptions("f32", max_sequences=4))
    yield made
    made.close()


def part(reference: dict[str, Any], run: str, logits: Any) -> Any:
    return logits(reference[f"tokens_{run}"])[int(reference[f"first_{run}"]) :]


def test_what_the_file_says(source: ModelSource) -> None:
    config = source.config
    assert source.format == "GGUF v3, TQ2_0 + TQ1_0"
    assert (config.arch, config.ffn, config.rope_dim, config.head_dim) == ("maple", 256, 32, 64)
    assert config.experts == Experts(5, 2, 0.5)
    assert config.windows == Windows(24, (True, False))
    assert config.linears(0)["ffn_down_exps"] == (5 * 256, 256)


@pytest.mark.parametrize("run", ["a", "b"])
def test_the_engine_gives_the_logits_of_the_formulas(
    run: str, engine: Engine, reference: dict[str, Any], maple_model: ModuleType
) -> None:
    """With activations rounded as the kernels do: what is left is f32 rounding."""
    expected = part(reference, run, maple_model.Forward(maple_model.Shape(), 32).logits)
    np.testing.assert_allclose(part(reference, run, engine.logits), expected, atol=1e-3)


@pytest.mark.parametrize("kv_cache_type", ["f16", "f32", "int8"])
def test_the_engine_stays_near_float_activations(
    kv_cache_type: Any, source: ModelSource, reference: dict[str, Any], float_model: ModuleType
) -> None:
    engine = Engine(source, NumpyDevice(), EngineOptions(kv_cache_type, max_sequences=1))
    for run in "ab":
        found, wanted = part(reference, run, engine.logits), reference[f"logits_{run}"]
        assert float_model.divergence(wanted, found).mean() <= 1e-2
        assert (found.argmax(axis=1) == wanted.argmax(axis=1)).mean() >= 0.9
    engine.close()


CHANGES: dict[str, dict[str, Any]] = {
    "a narrower window": {"window": 23},
    "a wider window": {"window": 25},
    "windows everywhere": {"windowed": (True, True)},
    "windows nowhere": {"windowed": (False, False)},
    "positions everywhere": {"rotated": (True, True)},
    "positions nowhere": {"rotated": (False, False)},
    "all of a head turned": {"rope_dim": 64},
    "never clamped": {"limit": 1e9},
    "one expert": {"used": 1},
    "weights among all experts": {"softmax_of_chosen": False},
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_comparison_notices(change: str, reference: dict[str, Any], maple_model: ModuleType) -> None:
    shape = replace(maple_model.Shape(), **CHANGES[change])
    found = part(reference, "b", maple_model.Forward(shape).logits)
    assert np.abs(found - reference["logits_b"]).max() > 0.1


def test_the_committed_reference_is_that_of_the_formulas(reference: dict[str, Any], maple_model: ModuleType) -> None:
    found = part(reference, "b", maple_model.Forward(maple_model.Shape()).logits)
    np.testing.assert_allclose(found, reference["logits_b"], atol=1e-5)


def test_chunks_and_single_tokens_give_the_same_logits(engine: Engine, reference: dict[str, Any]) -> None:
    tokens = reference["tokens_b"][:60]
    at_once = engine.logits(tokens)
    for chunk in (32, 7, 1):
        np.testing.assert_array_equal(engine.logits(tokens, chunk), at_once)


def test_texts_in_one_batch_are_what_they_are_alone(reference: dict[str, Any]) -> None:
    prompts = [reference["tokens_b"][start : start + 9 + start].tolist() for start in (0, 30)]
    with bitnet_core.load(FILE, "numpy") as model:
        alone = [model.generate(prompt, max_tokens=10, temperature=0).tokens for prompt in prompts]
        streams = [model.generate(prompt, max_tokens=10, temperature=0, stream=True) for prompt in prompts]
        for stream, tokens in zip(streams, alone, strict=True):
            for _ in stream:
                pass
            assert stream.result.tokens == tokens


@pytest.mark.parametrize("lacking", sorted(EXPERT_KERNELS | {"window_attention"}))
def test_a_device_without_a_kernel_is_refused_by_name_before_anything_is_loaded(
    lacking: str, source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = replace(numpy_info(), kernels=numpy_info().kernels - {lacking})
    monkeypatch.setattr("bitnet_hal.reference.describe.numpy_info", lambda: bare)
    device = NumpyDevice()
    monkeypatch.setattr(device, "alloc", None)
    with pytest.raises(UnsupportedError, match=f"architecture maple: it lacks the kernels {lacking} .*--device cpu"):
        Engine(source, device, EngineOptions(max_sequences=1))


def test_memory_counts_every_expert_and_a_step_reads_those_that_it_uses(source: ModelSource) -> None:
    config = source.config
    matrix = 256 * 256 // 4
    attention = 3 * matrix
    weights = 2 * (attention + 3 * 5 * matrix) + 2 * config.vocab * config.hidden * 2
    planned = plan_memory(source, config, numpy_info(), context=64, sequences=1, chunk=8)
    assert weights <= planned.wrapped < 1.02 * weights  # and scales, norms and the rotary table
    for sequences, experts in ((1, 2), (2, 4), (4, 5)):
        read = 2 * (attention + 3 * experts * matrix)
        assert bytes_per_token(config, 0, "f32", 0, sequences) == read // sequences


def test_it_is_not_converted(source: ModelSource, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a mixture of experts"):
        convert(source, tmp_path / "out.gguf", "tq2_0")
