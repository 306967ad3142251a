"""Tiny Qwen3 models in every form hold the same weights, and these, computed in float64, give transformers' logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from bitnet_core.formats import dense
from bitnet_core.formats.names import tables, ternaries, vectors
from bitnet_core.formats.open import open_model
from bitnet_core.model.source import ModelSource

QWEN3 = Path(__file__).parent / "qwen3"
FORMS = {
    "qwen3-untied": ("Q2_0-g64.gguf", "Q2_0-g128.gguf", "PQ2_0.gguf", "hf", "mlx"),
    "qwen3-tied": ("Q2_0-g64.gguf", "Q2_0-g128.gguf", "mlx"),
}
EVERY = [(model, form) for model, forms in FORMS.items() for form in forms]


@pytest.fixture(params=EVERY, ids=["-".join(pair) for pair in EVERY])
def source(request: pytest.FixtureRequest) -> Iterator[ModelSource]:
    opened = open_model(QWEN3.joinpath(*request.param), strict=True)
    yield opened
    opened.close()


@pytest.fixture
def reference(source: ModelSource) -> Any:
    with np.load(QWEN3 / source.path.parent.name / "reference.npz") as archive:
        return {name: archive[name] for name in archive.files}


def test_every_form_holds_the_same_model(source: ModelSource, float_model: ModuleType) -> None:
    first = open_model(QWEN3 / source.path.parent.name / "Q2_0-g64.gguf")
    assert replace(source.config, name="", norm_eps=0) == replace(first.config, name="", norm_eps=0)
    for name in ternaries(first.config):
        np.testing.assert_array_equal(
            float_model.values(source.ternary(name)), float_model.values(first.ternary(name)), err_msg=name
        )
    for name in vectors(first.config):
        np.testing.assert_array_equal(source.vector(name), first.vector(name), err_msg=name)
    first.close()


def test_tables_can_be_had_as_floats_too(source: ModelSource, float_model: ModuleType) -> None:
    for name in tables(source.config):
        weight = source.dense(name)
        assert weight.dtype == "f16"
        floats = dense.decode(weight.data, "f16", weight.columns)
        np.testing.assert_array_equal(floats, float_model.values(source.ternary(name)))


def test_what_the_files_say(source: ModelSource) -> None:
    config = source.config
    assert (config.arch, config.qk_norm, config.activation_group_size, config.ternary_tables) == (
        "qwen3",
        True,
        32,
        True,
    )
    assert (config.vocab, config.vocab_tokens, config.head_dim, config.rope_theta) == (320, 317, 64, 1e6)
    assert not config.rope_interleaved
    if config.tied_head:
        assert (config.rope_scaling, config.q_width, config.hidden) == ("none", 128, 256)
    else:
        assert (config.rope_scaling, config.rope_factor, config.rope_original_context) == ("yarn", 4, 64)
        assert (config.q_width, config.hidden) == (256, 128)


def test_float_activations_give_the_logits_of_transformers(
    source: ModelSource, reference: Any, float_model: ModuleType
) -> None:
    seen: dict[str, np.ndarray] = {}
    for run in "ab":
        found = float_model.logits(source, reference[f"tokens_{run}"], seen=seen.__setitem__)
        np.testing.assert_allclose(found[int(reference[f"first_{run}"]) :], reference[f"logits_{run}"], atol=1e-3)
        if run == "a":
            if source.config.n_layers == 1:  # transformers norms the last hidden state
                seen["after_layer_0"] = seen["last"]
            for name in ("embedding", "after_layer_0"):
                np.testing.assert_allclose(seen[name], reference[f"{name}_a"], atol=1e-4)


def test_int8_activations_in_blocks_of_32_stay_near(
    source: ModelSource, reference: Any, float_model: ModuleType
) -> None:
    runs = [(reference[f"tokens_{run}"], int(reference[f"first_{run}"])) for run in "ab"]
    found = [float_model.logits(source, tokens, 32)[first:] for tokens, first in runs]
    expected = [reference[f"logits_{run}"] for run in "ab"]
    rows, wanted = np.concatenate(found), np.concatenate(expected)
    assert float_model.divergence(wanted, rows).mean() <= 1e-2
    assert (rows.argmax(axis=1) == wanted.argmax(axis=1)).mean() >= 0.9


@pytest.mark.parametrize("change", [{"rope_scaling": "none"}, {"rope_theta": 1e4}, {"rope_beta_fast": 4.0}])
def test_the_comparison_notices_a_wrong_rotation(change: dict[str, Any], float_model: ModuleType) -> None:
    source = open_model(QWEN3 / "qwen3-untied" / "PQ2_0.gguf")
    with np.load(QWEN3 / "qwen3-untied" / "reference.npz") as archive:
        tokens, first, expected = archive["tokens_b"], int(archive["first_b"]), archive["logits_b"]
    source._config = replace(source.config, **change)  # type: ignore[attr-defined]
    found = float_model.logits(source, tokens)[first:]
    assert np.abs(found - expected).max() > 0.1
