"""Keys of an architecture that no reader uses: rejected, reported or without effect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitnet_core.errors import ModelError
from bitnet_core.formats.open import open_model

Make = Callable[..., Any]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_count", 8),
        ("attention.sliding_window", 32),
        ("attention.sliding_window", np.array([32, 0], np.int32)),
        ("attention.causal", False),
        ("final_logit_softcapping", 30.0),
        ("logit_scale", 0.5),
        ("logit_scale", "no"),
        ("use_parallel_residual", True),
    ],
)
def test_keys_that_change_the_computation(tmp_path: Path, make_tiny: Make, key: str, value: Any) -> None:
    model = make_tiny()
    model.keys[f"bitnet-b1.58.{key}"] = value
    with pytest.raises(ModelError, match=f"{key}' is not supported: it changes the model"):
        open_model(model.write(tmp_path / "a.gguf"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_count", 0),
        ("attention.sliding_window", np.array([0, 0], np.int32)),
        ("attention.causal", True),
        ("logit_scale", 1.0),
        ("vocab_size", 64),
        ("vision.block_count", 3),
        ("nextn_predict_layers", 0),
    ],
)
def test_keys_without_effect(tmp_path: Path, make_tiny: Make, key: str, value: Any) -> None:
    model = make_tiny()
    model.keys[f"bitnet-b1.58.{key}"] = value
    open_model(model.write(tmp_path / "a.gguf"), strict=True)


def test_unknown_keys_are_reported(tmp_path: Path, make_tiny: Make) -> None:
    model = make_tiny()
    model.keys |= {"bitnet-b1.58.unheard_of": 1, "bitnet-b1.58.zz": 2}
    findings = open_model(model.write(tmp_path / "a.gguf")).findings
    assert [f.code for f in findings if f.severity == "warning"] == ["unknown-key"]
    assert "'bitnet-b1.58.unheard_of' and 1 more is not known" in findings[0].message


def test_a_vision_tower_is_named(tmp_path: Path, make_tiny: Make) -> None:
    tower = make_tiny()
    tower.keys["general.architecture"] = "clip"
    tower.write(tmp_path / "mmproj-F16.gguf")
    with pytest.raises(ModelError, match="a vision tower"):
        open_model(tmp_path / "mmproj-F16.gguf")
    (tmp_path / "vision").mkdir()
    tower.write(tmp_path / "vision" / "mmproj-F16.gguf")
    with pytest.raises(ModelError, match=r"has no model: mmproj-F16\.gguf is a vision tower"):
        open_model(tmp_path / "vision")
    findings = open_model(make_tiny().write(tmp_path / "tiny.gguf"), strict=True).findings
    assert "mmproj-F16.gguf" in next(f.message for f in findings if f.code == "vision-not-supported")
    with pytest.raises(ModelError, match=r"such as .*tiny\.gguf"):
        open_model(tmp_path)
