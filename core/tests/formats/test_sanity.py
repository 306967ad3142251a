"""Findings at load have stable names, and errors name the tensor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitnet_core.errors import ModelError
from bitnet_core.formats.open import open_model
from bitnet_core.formats.ternary.codes import pack
from bitnet_core.formats.weight_checks import nonzero_share

Make = Callable[..., Any]
NAME = "blk.1.attn_v.weight"


def codes(model: Any, path: Path) -> list[str]:
    """Return the codes of the warnings."""
    findings = open_model(model.write(path / "a.gguf")).findings
    return [finding.code for finding in findings if finding.severity == "warning"]


def set_scale(model: Any, scale: float) -> None:
    model.tensors[NAME][2][-32:-28] = np.array([scale], "<f4").view(np.uint8)


def test_a_sound_model_has_no_warnings(tmp_path: Path, make_tiny: Make) -> None:
    assert codes(make_tiny(), tmp_path) == []


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_scales_that_are_no_positive_numbers_are_refused(tmp_path: Path, make_tiny: Make, scale: float) -> None:
    model = make_tiny()
    set_scale(model, scale)
    with pytest.raises(ModelError, match=r"blk\.1\.attn_v\.weight.*not a positive number"):
        open_model(model.write(tmp_path / "a.gguf"))


@pytest.mark.parametrize("scale", [1e-6, 2e4])
def test_unusual_scales(tmp_path: Path, make_tiny: Make, scale: float) -> None:
    model = make_tiny()
    set_scale(model, scale)
    assert codes(model, tmp_path) == ["scale-range"]


@pytest.mark.parametrize("byte", [0b01010101, 0b10101010])
def test_unusual_shares_of_non_zero_weights(tmp_path: Path, make_tiny: Make, byte: int) -> None:
    model = make_tiny()
    model.tensors[NAME][2][:-32] = byte
    assert codes(model, tmp_path) == ["non-zero-share"]


def test_illegal_codes_are_refused(tmp_path: Path, make_tiny: Make) -> None:
    model = make_tiny()
    model.tensors[NAME][2][100] = 0xFF
    with pytest.raises(ModelError, match=r"blk\.1\.attn_v\.weight.*illegal ternary code 3 in byte 100"):
        open_model(model.write(tmp_path / "a.gguf"))


def test_norms_that_are_not_finite_are_refused(tmp_path: Path, make_tiny: Make) -> None:
    model = make_tiny()
    model.tensors["blk.0.attn_norm.weight"][2][:4] = np.array([np.nan], "<f4").view(np.uint8)
    with pytest.raises(ModelError, match=r"blk\.0\.attn_norm\.weight.*not a number"):
        open_model(model.write(tmp_path / "a.gguf"))


def test_tokenizer_findings(tmp_path: Path, make_tiny: Make) -> None:
    model = make_tiny()
    del model.keys["tokenizer.ggml.pre"]
    model.keys["tokenizer.chat_template"] = "{{ 'BITNETAssistant: ' }}"
    assert codes(model, tmp_path) == ["missing-pre-tokenizer", "placeholder-chat-template"]
    del model.keys["tokenizer.ggml.tokens"]
    model.keys["bitnet-b1.58.vocab_size"] = 64
    assert codes(model, tmp_path) == ["missing-tokenizer"]
    model.keys["tokenizer.ggml.tokens"] = [f"t{i}" for i in range(65)]
    with pytest.raises(ModelError, match="65 tokens but only 64 rows"):
        codes(model, tmp_path)


def test_non_zero_share_leaves_padding_out() -> None:
    ternary = np.array([[0, 1, -1, 0, 1]], np.int8)
    assert nonzero_share(pack((ternary + 1).astype(np.uint8)), 5) == pytest.approx(0.6)
