"""Tiny Qwen3 models of every form through the engine, on the numpy device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import bitnet_core
import numpy as np
import numpy.typing as npt
import pytest
from bitnet_core.api import Model
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.sampling.constraint import Mask
from bitnet_core.formats.open import open_model
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.sampling import SamplingParams
from bitnet_core.plan.device_weights import Linear
from bitnet_hal.reference.device import NumpyDevice

QWEN3 = Path(__file__).parent / "qwen3"
FORMS = {
    "qwen3-untied": ("Q2_0-g64.gguf", "Q2_0-g128.gguf", "PQ2_0.gguf", "hf", "mlx"),
    "qwen3-tied": ("Q2_0-g64.gguf", "Q2_0-g128.gguf", "mlx"),
}
CACHES = {"f16": np.float16, "f32": np.float32}

Rows = npt.NDArray[np.float32]


@pytest.fixture(params=FORMS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(name: str) -> Iterator[Model]:
    with bitnet_core.load(QWEN3 / name / "Q2_0-g128.gguf", "numpy") as loaded:
        yield loaded


@pytest.fixture
def reference(name: str) -> dict[str, Any]:
    with np.load(QWEN3 / name / "reference.npz") as archive:
        return dict(archive)


def both(reference: dict[str, Any], logits: Callable[[Any], Any]) -> Any:
    """The rows of logits that the reference has, of both its runs."""
    return np.concatenate([logits(reference[f"tokens_{run}"])[int(reference[f"first_{run}"]) :] for run in "ab"])


def expected(reference: dict[str, Any]) -> Rows:
    return np.concatenate([reference[f"logits_{run}"] for run in "ab"])


@pytest.mark.parametrize("kv_cache_type", CACHES)
def test_logits_are_near_those_of_transformers_and_of_the_same_rounding_in_float64(
    name: str, kv_cache_type: str, reference: dict[str, Any], float_model: ModuleType
) -> None:
    """Run b goes 36 positions past the context that YaRN stretches."""
    with bitnet_core.load(QWEN3 / name / FORMS[name][0], "numpy", kv_cache_type=kv_cache_type) as model:
        assert model.config.rope_original_context in (0, len(reference["tokens_b"]) - 36)
        found = both(reference, model.engine.logits)
        same = both(reference, lambda ids: float_model.logits(model.source, ids, 32, cache=CACHES[kv_cache_type]))
    wanted = expected(reference)
    assert float_model.divergence(wanted, found).mean() <= 1e-2
    assert (found.argmax(axis=1) == wanted.argmax(axis=1)).mean() >= 0.9
    assert float_model.divergence(same, found).mean() <= 1e-3


def test_a_scale_for_128_columns_is_that_rounding(
    name: str, reference: dict[str, Any], float_model: ModuleType
) -> None:
    """It rounds more coarsely: within the bounds, twice as far from transformers as scales of 32 columns."""
    with bitnet_core.load(QWEN3 / name / FORMS[name][0], "numpy", activation_group_size=128) as model:
        assert model.config.activation_group_size == model.engine.config.activation_group_size == 128
        found = both(reference, model.engine.logits)
        same = both(reference, lambda ids: float_model.logits(model.source, ids, 128, cache=np.float16))
    wanted = expected(reference)
    assert float_model.divergence(wanted, found).mean() <= 1e-2
    assert (found.argmax(axis=1) == wanted.argmax(axis=1)).mean() >= 0.9
    assert float_model.divergence(same, found).mean() <= 1e-3


def test_float_activations_give_the_logits_of_transformers(
    name: str, reference: dict[str, Any], float64_model: Any
) -> None:
    for form in FORMS[name]:
        source = open_model(QWEN3 / name / form)
        found = both(reference, float64_model(source).logits)
        source.close()
        np.testing.assert_allclose(found, expected(reference), atol=1e-3, err_msg=form)


def test_every_form_gives_the_same_logits(name: str, reference: dict[str, Any]) -> None:
    found = []
    for form in FORMS[name]:
        with bitnet_core.load(QWEN3 / name / form, "numpy") as model:
            found.append(both(reference, model.engine.logits))
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_chunks_and_single_tokens_give_the_same_logits(model: Model, reference: dict[str, Any]) -> None:
    tokens = reference["tokens_b"]
    at_once = model.engine.logits(tokens)
    for chunk in (7, 1):
        found = model.engine.logits(tokens, chunk)
        assert (found.argmax(axis=1) == at_once.argmax(axis=1)).all()
        np.testing.assert_allclose(found, at_once, atol=0.6)  # an int8 code on the boundary, moved by a sum's order


def test_texts_in_one_batch_are_what_they_are_alone(model: Model, reference: dict[str, Any]) -> None:
    prompts = [reference["tokens_b"][start : start + 9 + start].tolist() for start in (0, 5, 30)]
    alone = [model.generate(prompt, max_tokens=24, temperature=0).tokens for prompt in prompts]
    streams = [model.generate(prompt, max_tokens=24, temperature=0, stream=True) for prompt in prompts]
    for stream, tokens in zip(streams, alone, strict=True):
        for _ in stream:
            pass
        assert stream.result.tokens == tokens


def test_the_tables_stay_ternary(model: Model) -> None:
    """Codes that the device reads take no more than the file's tensors."""
    memory, weights = model.engine.memory(), model.engine.weights
    assert isinstance(weights.embedding, Linear)
    assert isinstance(weights.head, Linear)
    assert (weights.head is weights.embedding) == model.config.tied_head
    stored = sum(tensor.nbytes for tensor in model.source.tensors)
    assert 0 < memory["wrapped_weights_bytes"] <= stored


class AnyToken:
    """Allows every id, those without a token too."""

    def __init__(self, vocab: int) -> None:
        self._mask = np.full(-(-vocab // 32), -1, np.int32)

    def mask(self) -> Mask:
        return self._mask

    def accept(self, token: int) -> bool:
        return True


CHOICES = {
    "greedy": {},
    "sampled": {"temperature": 3.0, "seed": 1},
    "of few": {"temperature": 3.0, "seed": 1, "top_k": 40},
    "penalized": {"repetition_penalty": 1.5},
    "with logprobs": {"logprobs": 5},
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("choice", CHOICES)
def test_ids_without_a_token_are_never_chosen(name: str, choice: str, masked: bool, reference: dict[str, Any]) -> None:
    """With three hundred tokens taken away, nearly every likeliest id is one of those."""
    source = open_model(QWEN3 / name / "Q2_0-g128.gguf")
    source._config = replace(source.config, vocab_tokens=17)  # type: ignore[attr-defined]
    engine = Engine(source, NumpyDevice(), EngineOptions(max_sequences=1))
    prompt, sampling = reference["tokens_a"] % 17, SamplingParams(**CHOICES[choice])
    sequence = engine.add_request(
        prompt, sampling, max_tokens=24, constraint=AnyToken(source.config.vocab) if masked else None
    )
    while engine.step():
        pass
    said = sequence.tokens[len(prompt) :]
    unlimited = engine.logits(sequence.tokens)[len(prompt) - 1 : -1].argmax(axis=1)
    engine.close()
    source.close()
    assert (unlimited >= 17).sum() > 12
    assert len(said) == 24
    assert max(said) < 17
