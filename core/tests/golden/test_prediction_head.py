"""A model with a head for multi-token prediction gives its trunk's logits, and the head's: those of transformers."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import bitnet_core
import numpy as np
import pytest
from bitnet_core.formats.names import prediction_matrices
from bitnet_core.formats.open import open_model

BONSAI2 = Path(__file__).parent / "bonsai2"
FILE = BONSAI2 / "rotated-PQ2_0-MTP-Q8_0.gguf"


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    with np.load(BONSAI2 / "mtp_reference.npz") as archive:
        return dict(archive)


def test_the_head_is_read_and_reported() -> None:
    source = open_model(FILE, strict=True)
    config = source.config
    assert [finding.code for finding in source.findings] == ["prediction-head"]
    assert (config.n_layers, config.prediction_head, source.format) == (2, True, "GGUF v3, PQ2_0")
    assert not source.has("blk.2.attn_q")
    assert "blk.2.nextn.eh_proj.weight" in [tensor.name for tensor in source.tensors]
    for name, shape in prediction_matrices(config).items():
        weight = source.dense(name)
        assert (weight.dtype, (weight.rows, weight.columns), len(weight.data)) == ("q8_0", shape, shape[0])
    source.close()


@pytest.mark.parametrize("run", ["a", "b"])
def test_float_activations_give_the_logits_of_the_trunk(
    run: str, reference: dict[str, Any], float64_model: Any
) -> None:
    found = float64_model(open_model(FILE)).logits(reference[f"tokens_{run}"])[int(reference[f"first_{run}"]) :]
    np.testing.assert_allclose(found, reference[f"logits_{run}"], atol=1e-3)


@pytest.mark.parametrize("run", ["a", "b"])
def test_float_activations_give_the_logits_of_the_head(run: str, reference: dict[str, Any], float64_model: Any) -> None:
    wanted = reference[f"mtp_logits_{run}"]
    found = float64_model(open_model(FILE)).prediction_logits(reference[f"tokens_{run}"])[-len(wanted) :]
    np.testing.assert_allclose(found, wanted, atol=1e-3)


def test_the_engine_stays_near(reference: dict[str, Any], float_model: ModuleType) -> None:
    with bitnet_core.load(FILE, "numpy") as model:
        found = model.engine.logits(reference["tokens_a"])
    assert float_model.divergence(reference["logits_a"], found).mean() <= 1e-2
    assert (found.argmax(axis=1) == reference["logits_a"].argmax(axis=1)).mean() >= 0.9
