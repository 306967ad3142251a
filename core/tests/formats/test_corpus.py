"""Every file of the corpus is named right, and runs or is refused in one sentence; none is misread."""

from __future__ import annotations

import re
from pathlib import Path

import bitnet_core
import corpus
import numpy as np
import pytest
from bitnet_core.errors import ModelError, TokenizerError
from bitnet_core.formats.convert.convert import convert
from bitnet_core.formats.convert.target import Target
from bitnet_core.formats.names import ternaries
from bitnet_core.formats.open import open_model
from bitnet_core.formats.ternary.codes import unpack
from bitnet_core.model.weights import TernaryWeight
from bitnet_core.tokenizer import load_tokenizer

ENTRIES = corpus.entries()
RUN = [name for name, entry in ENTRIES.items() if entry.runs]
REFUSED = [name for name, entry in ENTRIES.items() if entry.refused]


def values(weight: TernaryWeight) -> np.ndarray:
    scales = weight.scales.reshape(len(weight.scales), -1)
    if weight.block:
        scales = np.repeat(scales, weight.block, axis=1)[:, : weight.columns]
    return (unpack(weight.codes, weight.columns).astype(np.float32) - 1) * scales


def read(path: Path) -> None:
    source = open_model(path)
    for matrix in ternaries(source.config):
        source.ternary(matrix)
    source.dense("token_embd")
    load_tokenizer(source.tokenizer)


def test_each_entry_states_one_end() -> None:
    assert len(RUN) + len(REFUSED) == len(ENTRIES)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", RUN)
def test_it_is_named_and_runs(tmp_path: Path, name: str) -> None:
    entry = ENTRIES[name]
    path = entry.write(tmp_path / f"{name}.gguf")
    source = open_model(path)
    assert re.search(rf"\b{entry.runs}\b", source.format)
    for matrix, (rows, _) in ternaries(source.config).items():
        weight = source.ternary(matrix)
        if entry.expected is not None:
            assert (values(weight) == (entry.expected(rows).astype(np.float32) - 1) * corpus.SCALE).all()
    load_tokenizer(source.tokenizer)
    source.close()
    with bitnet_core.load(path, "numpy") as model:
        assert np.isfinite(model.engine.logits([1, 2, 3])).all()
        assert model.generate([1, 2, 3], max_tokens=2, temperature=0).tokens


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_in_a_sentence(tmp_path: Path, name: str) -> None:
    entry = ENTRIES[name]
    path = entry.write(tmp_path / f"{name}.gguf")
    with pytest.raises((ModelError, TokenizerError)) as caught:
        read(path)
    message = str(caught.value)
    assert re.search(entry.refused, message), message
    assert "\n" not in message
    assert "damaged GGUF" not in message


@pytest.mark.parametrize("target", ["q2_0", "tq2_0", "tq1_0", "pq2_0"])
@pytest.mark.parametrize("name", ["stq1_0", "stq1_0-early", "q1_0", "ptq1_0", "trilm"])
def test_layouts_are_converted_without_a_change(tmp_path: Path, name: str, target: Target) -> None:
    source = open_model(ENTRIES[name].write(tmp_path / f"{name}.gguf"))
    done = convert(source, tmp_path / "converted.gguf", target, verify=True)
    written = open_model(done.path)
    for matrix in ternaries(source.config):
        assert (values(written.ternary(matrix)) == values(source.ternary(matrix))).all()


def test_falcon3_is_reported(tmp_path: Path) -> None:
    findings = open_model(ENTRIES["falcon3"].write(tmp_path / "a.gguf"), strict=True).findings
    assert "pre-tokenizer-disputed" in [finding.code for finding in findings]


@pytest.mark.parametrize("name", ["trilm", "i2_s", "q2_0-128"])
def test_a_download_that_was_cut_off_is_named(tmp_path: Path, name: str) -> None:
    path = ENTRIES[name].write(tmp_path / f"{name}.gguf")
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(ModelError, match="seems cut off; get the file again"):
        read(path)


def test_a_damaged_table_is_not_called_one_that_f16_rounds(tmp_path: Path) -> None:
    keys, tensors = corpus.model(
        142,
        corpus.blocks(corpus.codes(), 128, corpus.quarters, False),
        "qwen3",
        "qwen2",
        **{"attention.key_length": 64},
    )
    kind, shape, data = tensors["token_embd.weight"]
    tensors["token_embd.weight"] = kind, shape, np.full_like(data, 0xFF)
    path = tmp_path / "a.gguf"
    path.write_bytes(corpus.gguf(keys, tensors))
    with pytest.raises(ModelError, match="token_embd: a value is infinite or not a number: the data is damaged"):
        convert(open_model(path), tmp_path / "out", "safetensors")
