"""Types of embeddings and heads: the values that gguf-py gives, and models that have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitnet_core.errors import ModelError
from bitnet_core.formats import dense
from bitnet_core.formats.gguf.types import BY_NAME
from bitnet_core.formats.open import open_model

Make = Callable[..., Any]

with np.load(Path(__file__).parent / "block_types.npz") as archive:
    RECORDED = dict(archive)
TYPES = [name.removesuffix("_bytes") for name in RECORDED if name.endswith("_bytes")]


@pytest.mark.parametrize("name", TYPES)
def test_recorded_values(name: str) -> None:
    blocks, values = RECORDED[f"{name}_bytes"], RECORDED[f"{name}_values"]
    nbytes, decoder = dense._CONVERTED[name]
    assert nbytes == BY_NAME[name].block_bytes == blocks.shape[1]
    assert np.array_equal(decoder(blocks), values)
    weight = dense.from_file(blocks.reshape(-1), name, 1, values.size)
    assert (weight.data.view("<f2").reshape(values.shape) == values.astype("<f2")).all()


def test_every_converted_type_is_recorded() -> None:
    assert set(TYPES) == dense._CONVERTED.keys()


@pytest.mark.parametrize("name", TYPES)
def test_all_codes_as_gguf_py_decodes_them(name: str) -> None:
    quants = pytest.importorskip("gguf.quants", reason="pip install gguf")
    blocks = np.random.default_rng(1).integers(0, 256, (4096, BY_NAME[name].block_bytes)).astype(np.uint8)
    with np.errstate(all="ignore"):
        expected = quants.dequantize(blocks, quants.GGMLQuantizationType[name])
        found = dense._CONVERTED[name][1](blocks)
    assert np.array_equal(found, expected, equal_nan=True)


@pytest.mark.parametrize("name", TYPES)
def test_an_embedding_of_this_type_is_read(tmp_path: Path, make_tiny: Make, name: str) -> None:
    model = make_tiny(hidden=256)
    count = BY_NAME[name].nbytes((64, 256)) or 0
    model.add("token_embd.weight", np.resize(RECORDED[f"{name}_bytes"].reshape(-1), count), name, (64, 256))
    table = open_model(model.write(tmp_path / "a.gguf")).dense("token_embd")
    expected = np.resize(RECORDED[f"{name}_values"].reshape(-1), 64 * 256).astype("<f2")
    assert (table.data.view("<f2").reshape(-1) == expected).all()


@pytest.mark.parametrize("name", ["IQ1_S", "IQ1_M", "NVFP4"])
def test_types_without_a_decoder_are_named(name: str) -> None:
    size = BY_NAME[name].nbytes((1, 256)) or 0
    with pytest.raises(ModelError, match=f"type {name} is not supported in an embedding or head; quantize it again"):
        dense.from_file(np.zeros(size, np.uint8), name, 1, 256)


@pytest.mark.parametrize("name", ["Q5_K", "Q3_K", "IQ3_S", "MXFP4"])
def test_a_matrix_of_this_type_is_not_ternary(tmp_path: Path, make_tiny: Make, name: str) -> None:
    model = make_tiny()
    size = BY_NAME[name].nbytes((128, 256)) or 0
    model.add("blk.0.ffn_down.weight", np.zeros(size, np.uint8), name, (128, 256))
    with pytest.raises(ModelError, match=f"ffn_down.*has type {name}, which holds no ternary weights"):
        open_model(model.write(tmp_path / "a.gguf"))
