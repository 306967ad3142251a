"""A Llama-like family is one row of the table: a GGUF file, a folder and a conversion need nothing else."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bitnet_core.formats.convert.convert import convert
from bitnet_core.formats.open import open_model
from bitnet_core.model.families import FAMILIES
from bitnet_core.model.source import ModelSource

QWEN3 = Path(__file__).parents[1] / "golden" / "qwen3" / "qwen3-untied"


@pytest.fixture
def qwen9(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add a family that nothing but its row knows."""
    family = FAMILIES["qwen3"]
    assert family.folder is not None
    folder = replace(family.folder, model_type="qwen9", architecture="Qwen9ForCausalLM")
    monkeypatch.setitem(FAMILIES, "qwen9", replace(family, folder=folder))


def assert_same(source: ModelSource, reference: ModelSource) -> None:
    assert replace(source.config, name="", arch="") == replace(reference.config, name="", arch="")
    for name in ("token_embd", "blk.0.attn_q", "blk.1.ffn_down", "output"):
        codes, expected = source.ternary(name), reference.ternary(name)
        assert np.array_equal(codes.codes, expected.codes)
        assert np.array_equal(codes.scales, expected.scales)


@pytest.mark.usefixtures("qwen9")
def test_a_row_is_enough_for_a_gguf_file_and_its_conversions(tmp_path: Path) -> None:
    path = tmp_path / "qwen9.gguf"
    path.write_bytes((QWEN3 / "PQ2_0.gguf").read_bytes().replace(b"qwen3", b"qwen9"))
    reference, source = open_model(QWEN3 / "PQ2_0.gguf"), open_model(path)
    assert source.config.arch == "qwen9"
    assert_same(source, reference)
    convert(source, tmp_path / "again.gguf", "q2_0", verify=True)
    assert open_model(tmp_path / "again.gguf").config.arch == "qwen9"
    convert(source, tmp_path / "folder", "safetensors", verify=True)
    assert '"Qwen9ForCausalLM"' in (tmp_path / "folder" / "config.json").read_text()


@pytest.mark.usefixtures("qwen9")
def test_a_row_is_enough_for_a_folder(tmp_path: Path) -> None:
    shutil.copytree(QWEN3 / "hf", tmp_path / "hf")
    config = tmp_path / "hf" / "config.json"
    config.write_text(config.read_text().replace("qwen3", "qwen9").replace("Qwen3", "Qwen9"))
    source = open_model(tmp_path / "hf")
    assert source.config.arch == "qwen9"
    assert_same(source, open_model(QWEN3 / "hf"))
