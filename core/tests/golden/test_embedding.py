"""A tiny BitNet-embedding, as a folder and as a GGUF file, gives the vectors that transformers gives."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import bitnet_core
import numpy as np
import pytest
from bitnet_core.api import Model
from bitnet_core.errors import ModelError
from bitnet_core.formats.convert.convert import convert
from bitnet_core.formats.convert.target import Target
from bitnet_core.formats.open import open_model
from bitnet_core.model.config import Pooling

EMBEDDING = Path(__file__).parent / "embedding"
FORMS = ("I2_S.gguf", "folder")


@pytest.fixture(params=FORMS)
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    with bitnet_core.load(EMBEDDING / request.param, "numpy") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    with np.load(EMBEDDING / "reference.npz") as archive:
        return dict(archive)


def tokens_of(reference: dict[str, Any]) -> list[list[int]]:
    return [reference[f"tokens_{n}"].tolist() for n in range(len(reference["texts"]))]


def test_texts_have_the_vectors_of_transformers(model: Model, reference: dict[str, Any]) -> None:
    assert model.config.pooling == Pooling("last")
    found = model.embed(reference["texts"].tolist())
    assert found.shape == reference["rounded"].shape
    assert ((found * reference["rounded"]).sum(axis=1) > 0.9995).all()
    assert ((found * reference["plain"]).sum(axis=1) > 0.99).all()
    same = model.embed(tokens_of(reference))
    assert np.array_equal(found, same)  # the tokenizer ends each text as transformers does


@pytest.mark.parametrize("form", FORMS)
def test_float_activations_give_them_exactly(form: str, reference: dict[str, Any], float64_model: Any) -> None:
    source = open_model(EMBEDDING / form)
    for tokens, wanted in zip(tokens_of(reference), reference["plain"], strict=True):
        row = float64_model(source).hidden(np.array(tokens))[-1]
        np.testing.assert_allclose(row / np.linalg.norm(row), wanted, atol=1e-4)
    source.close()


def test_the_comparison_notices_a_missing_norm(reference: dict[str, Any], float64_model: Any) -> None:
    source = open_model(EMBEDDING / FORMS[0])
    double = float64_model(source)
    double.config = replace(double.config, projection_norms=False)
    row = double.hidden(np.array(tokens_of(reference)[1]))[-1]
    assert row @ reference["plain"][1] / np.linalg.norm(row) < 0.99
    source.close()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("target", ["i2_s", "q2_0"])
def test_it_becomes_gguf_and_gives_the_same_vectors(tmp_path: Path, form: str, target: Target) -> None:
    source = open_model(EMBEDDING / form)
    done = convert(source, tmp_path / "model.gguf", target, verify=target == "i2_s")
    with bitnet_core.load(done.path, "numpy") as written, bitnet_core.load(EMBEDDING / form, "numpy") as first:
        assert written.config.pooling == Pooling("last")
        found, wanted = written.embed(["the thin inn"]), first.embed(["the thin inn"])
        assert (found * wanted).sum() > (0.99999 if target == "i2_s" else 0.999)  # Q2_0 rounds scales to f16
    source.close()


@pytest.mark.parametrize("target", ["safetensors", "mlx"])
def test_it_becomes_no_folder(tmp_path: Path, target: Target) -> None:
    source = open_model(EMBEDDING / FORMS[0])
    with pytest.raises(ModelError, match="master weights, which are lost"):
        convert(source, tmp_path / "folder", target)
    source.close()


def test_the_folder_s_own_pooling_is_used(tmp_path: Path, reference: dict[str, Any], float64_model: Any) -> None:
    folder = shutil.copytree(EMBEDDING / "folder", tmp_path / "folder")
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))  # a model without a head may state anything
    text = str(reference["texts"][1])
    with bitnet_core.load(folder, "numpy") as model:
        assert model.config.pooling == Pooling("mean")
        found = model.embed([text])[0]
        mean = float64_model(model.source).hidden(np.array(tokens_of(reference)[1])).mean(axis=0)
    assert found @ mean / np.linalg.norm(mean) > 0.99


@pytest.mark.parametrize("form", FORMS)
def test_the_command_prints_a_vector_a_line(form: str, bitnet: Any, tmp_path: Path, reference: dict[str, Any]) -> None:
    on = ("-m", EMBEDDING / form, "-d", "numpy", "-q")
    path = tmp_path / "texts"
    path.write_text("the\n\nin the thin inn\n")
    result = bitnet("embed", path, *on)
    assert (result.code, result.err) == (0, "")
    found = np.array([json.loads(line) for line in result.out.splitlines()])
    assert ((found * reference["rounded"][:2]).sum(axis=1) > 0.9995).all()
    short = json.loads(bitnet("embed", "-", *on, "--dimensions", 8, "--dtype", "int8", "--json", stdin=b"the").out)
    assert np.array(short["embeddings"]).shape == (1, 8)
    assert max(map(abs, short["embeddings"][0])) == 127
    assert bitnet("embed", "-", *on, stdin=b"\n").code == 2
    refused = bitnet("run", "hello", *on)
    assert refused.code == 2
    assert "bitnet embed" in refused.err


def test_inspect_shows_what_it_does(bitnet: Any) -> None:
    shown = " ".join(bitnet("inspect", EMBEDDING / "I2_S.gguf").out.split())
    assert "the last row, divided by its length" in shown
    assert "the input of each matrix" in shown
