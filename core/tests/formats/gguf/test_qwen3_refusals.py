"""Damaged, rotated and otherwise unreadable models of the Qwen3 kind end in one clear message."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitnet_core.errors import ModelError
from bitnet_core.formats.gguf.container import GGUFFile
from bitnet_core.formats.gguf.types import BY_NAME
from bitnet_core.formats.gguf.writer import GGUFWriter
from bitnet_core.formats.names import ternaries
from bitnet_core.formats.open import open_model
from safetensors.numpy import load_file, save_file

QWEN3 = Path(__file__).parents[2] / "golden" / "qwen3"
UNTIED = QWEN3 / "qwen3-untied"
MetadataReader = dict[str, Any]
Tensors = dict[str, tuple[tuple[int, ...], str, np.ndarray]]


def rewritten(
    path: Path, change: Callable[[MetadataReader, Tensors], None], source: Path = UNTIED / "PQ2_0.gguf"
) -> Path:
    """Return a copy of a GGUF file with other keys and tensors."""
    file = GGUFFile(source)
    keys = dict(file.metadata)
    tensors: Tensors = {t.name: (t.shape, t.type.name, file.data(t).copy()) for t in file.tensors.values()}
    change(keys, tensors)
    with GGUFWriter(path) as writer:
        for key, value in keys.items():
            writer.metadata(key, value)
        for name, (shape, dtype, data) in tensors.items():
            writer.tensor(name, shape, dtype, data.size)
        for name, (_, _, data) in tensors.items():
            writer.write(name, [data])
    return path


def message(path: Path) -> str:
    """Return the reason for rejecting the model, when it is opened or when all of it is read."""
    with pytest.raises(ModelError) as caught:
        _read(path)
    return str(caught.value)


def _read(path: Path) -> None:
    source = open_model(path)
    for name in ternaries(source.config):
        source.ternary(name)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("prism.hadamard.version", 1, "the weights are rotated"),
        ("general.architecture", "qwen35", "qwen35.attention.head_count' is missing"),
        ("general.architecture", "qwen35moe", "mixture of experts"),
        ("general.architecture", "maple", "maple.attention.head_count"),
        ("general.architecture", "minicpm", "minicpm.attention.head_count"),
        ("general.architecture", "gpt-oss", "architecture 'gpt-oss' is not supported"),
        ("qwen3.rope.scaling.yarn_ext_factor", 0.5, "only 1 is supported"),
        ("qwen3.rope.scaling.yarn_attn_factor", 2.0, "only 1 is supported"),
        ("qwen3.rope.scaling.yarn_log_multiplier", 0.1, "rope.scaling.yarn_log_multiplier' is unknown"),
        ("qwen3.rope.dimension_count", 32, "rope.dimension_count 32"),
        ("qwen3.rope.scaling.type", "longrope", "RoPE scaling 'longrope' is not supported"),
    ],
)
def test_keys_that_are_refused(tmp_path: Path, key: str, value: Any, words: str) -> None:
    def change(keys: MetadataReader, tensors: Tensors) -> None:
        keys[key] = value

    assert words in message(rewritten(tmp_path / "m.gguf", change))


def test_the_betas_of_yarn_are_heeded(tmp_path: Path) -> None:
    def change(keys: MetadataReader, tensors: Tensors) -> None:
        keys |= {"qwen3.rope.scaling.yarn_beta_fast": 16.0, "qwen3.rope.scaling.yarn_beta_slow": 2.0}

    config = open_model(rewritten(tmp_path / "m.gguf", change)).config
    assert (config.rope_beta_fast, config.rope_beta_slow) == (16, 2)


def test_a_model_without_its_head_norms_is_refused(tmp_path: Path) -> None:
    def change(keys: MetadataReader, tensors: Tensors) -> None:
        del tensors["blk.1.attn_k_norm.weight"]

    assert "tensor 'blk.1.attn_k_norm' is missing" in message(rewritten(tmp_path / "m.gguf", change))


def test_head_norms_of_the_whole_width_are_refused(tmp_path: Path) -> None:
    def change(keys: MetadataReader, tensors: Tensors) -> None:
        tensors["blk.0.attn_q_norm.weight"] = ((256,), "F32", np.ones(256, "<f4").view(np.uint8))

    assert "attn_q_norm' has the shape [256]; the metadata requires [64]" in message(
        rewritten(tmp_path / "m.gguf", change)
    )


def test_the_code_3_is_refused_in_layers_and_tables(tmp_path: Path) -> None:
    for name in ("blk.0.ffn_up.weight", "token_embd.weight"):

        def change(keys: MetadataReader, tensors: Tensors, name: str = name) -> None:
            tensors[name][2].reshape(-1, 34)[:, 2] |= 0b11

        text = message(rewritten(tmp_path / "m.gguf", change))
        assert name in text
        assert "illegal ternary code 3" in text


@pytest.mark.parametrize("keep", [100, 5000, 60000, -1])
@pytest.mark.parametrize("form", ["PQ2_0.gguf", "Q2_0-g64.gguf", "hf", "mlx"])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, form: str, keep: int) -> None:
    copy = tmp_path / form
    if (UNTIED / form).is_dir():
        shutil.copytree(UNTIED / form, copy)
        weights = copy / "model.safetensors"
    else:
        weights = Path(shutil.copy(UNTIED / form, copy))
    weights.write_bytes(weights.read_bytes()[:keep])
    assert str(copy) in message(copy)


def test_one_table_that_is_not_ternary_makes_both_dense(tmp_path: Path) -> None:
    def change(keys: MetadataReader, tensors: Tensors) -> None:
        halves = np.random.default_rng(0).standard_normal((320, 128)).astype("<f2")
        tensors["output.weight"] = ((320, 128), "F16", halves.view(np.uint8).reshape(-1))

    source = open_model(rewritten(tmp_path / "m.gguf", change))
    assert not source.config.ternary_tables
    assert source.dense("token_embd").dtype == source.dense("output").dtype == "f16"


def test_binary_weights_are_read(tmp_path: Path) -> None:
    def change(keys: MetadataReader, tensors: Tensors) -> None:
        for name, (shape, dtype, data) in tensors.items():
            if dtype == "PQ2_0":
                blocks = np.random.default_rng(1).integers(0, 256, (data.size // 34, 18)).astype(np.uint8)
                blocks[:, :2] = np.array([0.02], "<f2").view(np.uint8)
                tensors[name] = (shape, "Q1_0", blocks.reshape(-1))

    source = open_model(rewritten(tmp_path / "m.gguf", change), strict=True)
    assert source.format == "GGUF v3, Q1_0"
    weight = source.ternary("blk.0.attn_q")
    assert set(np.unique(weight.codes & 3)) == {0, 2}
    assert BY_NAME["Q1_0"].nbytes((256, 128)) == 256 * 18


def folder(tmp_path: Path, form: str, config: MetadataReader, tensors: Callable[[dict[str, np.ndarray]], None]) -> Path:
    """Return a copy of a folder with other keys and tensors."""
    copy = tmp_path / form
    shutil.copytree(UNTIED / form, copy)
    values = json.loads((copy / "config.json").read_text()) | config
    (copy / "config.json").write_text(json.dumps(values))
    found = load_file(copy / "model.safetensors")
    tensors(found)
    save_file(found, copy / "model.safetensors")
    return copy


UP = "model.layers.1.mlp.up_proj"


@pytest.mark.parametrize(
    ("form", "config", "words"),
    [
        ("hf", {"attention_bias": True}, "attention_bias is true"),
        ("hf", {"use_sliding_window": True}, "use_sliding_window is true"),
        ("hf", {"model_type": "qwen3_5"}, "gated delta nets: use the model's GGUF file (Q2_0, PQ2_0, PTQ1_0 or Q1_0)"),
        ("hf", {"model_type": "qwen3_5_text"}, "gated delta nets: use the model's GGUF file"),
        ("hf", {"model_type": "qwen3_5", "text_config": {"model_type": "qwen3_5_text"}}, "use the model's GGUF file"),
        ("mlx", {"model_type": "qwen3_5"}, "gated delta nets: use the model's GGUF file"),
        ("hf", {"model_type": "qwen3_moe"}, "mixture of experts"),
        ("mlx", {"model_type": "prism_hadamard_qwen35"}, "use the model's GGUF file (PQ2_0 or PTQ1_0)"),
        ("mlx", {"hadamard": {"schema": 1}}, "rotated (hadamard), as in Bonsai 2: use the model's GGUF file"),
        ("hf", {"quantization_config": {"quant_method": "gptq"}}, "quant_method 'gptq'"),
        ("hf", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.0}}, "attention_factor"),
        ("hf", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "truncate": False}}, "truncate"),
        ("hf", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0}}, "mscale"),
        ("mlx", {"quantization": {"group_size": 128, "bits": 2, "mode": "mxfp4"}}, "mode 'mxfp4'"),
        ("mlx", {"quantization": {"group_size": 128, "bits": 3}}, "packed in 3 bits"),
        (
            "mlx",
            {"quantization": {"group_size": 128, "bits": 2, f"{UP}": {"bits": 4}}},
            "ffn_up' has the shape [128, 64]",
        ),
        ("mlx", {"vocab_size": 300}, "shape"),
    ],
)
def test_folders_that_are_refused_by_their_keys(tmp_path: Path, form: str, config: MetadataReader, words: str) -> None:
    assert words in message(folder(tmp_path, form, config, lambda tensors: None))


def master(tensors: dict[str, np.ndarray]) -> None:
    tensors[f"{UP}.weight"] = np.random.default_rng(0).standard_normal((128, 128)).astype(np.float16)


def one_odd_weight(tensors: dict[str, np.ndarray]) -> None:
    weight = tensors[f"{UP}.weight"]
    row = np.flatnonzero((weight != 0).sum(axis=1) > 2)[1]
    weight[row, np.flatnonzero(weight[row])[0]] *= 2


def no_scales(tensors: dict[str, np.ndarray]) -> None:
    del tensors[f"{UP}.scales"]


def short_scales(tensors: dict[str, np.ndarray]) -> None:
    tensors[f"{UP}.scales"] = tensors[f"{UP}.scales"][:5]


def stray_scales(tensors: dict[str, np.ndarray]) -> None:
    tensors["model.norm.scales"] = tensors[f"{UP}.scales"]


def affine(tensors: dict[str, np.ndarray]) -> None:
    tensors[f"{UP}.biases"] = tensors[f"{UP}.biases"] * np.float16(0.5)


def signs(tensors: dict[str, np.ndarray]) -> None:
    tensors["model.embed_tokens.signs"] = np.ones(128, np.float16)


@pytest.mark.parametrize(
    ("form", "change", "words"),
    [
        ("hf", master, "up_proj.weight': the floats are not ternary in groups of 128 or 64 columns: master weights"),
        ("hf", one_odd_weight, "up_proj.weight': the floats are not ternary"),
        ("mlx", no_scales, "up_proj.weight': is packed and has no scales"),
        ("mlx", short_scales, "up_proj.weight': has scales of type F16 and shape [5, 1]"),
        ("mlx", stray_scales, "tensor 'output_norm.scales'"),
        ("mlx", affine, "up_proj.weight': is an affine 2-bit pack"),
        ("mlx", signs, "tensor 'model.embed_tokens.signs' is unknown"),
    ],
)
def test_folders_that_are_refused_by_their_tensors(
    tmp_path: Path, form: str, change: Callable[[dict[str, np.ndarray]], None], words: str
) -> None:
    assert words in message(folder(tmp_path, form, {}, change))


def test_a_table_in_four_bits_becomes_floats(tmp_path: Path) -> None:
    def change(tensors: dict[str, np.ndarray]) -> None:
        for name in ("model.embed_tokens", "lm_head"):
            codes = np.random.default_rng(2).integers(0, 1 << 32, (320, 16), np.uint64).astype(np.uint32)
            tensors[f"{name}.weight"] = codes

    four = {"group_size": 128, "bits": 4}
    config = {"quantization": {"group_size": 128, "bits": 2, "model.embed_tokens": four, "lm_head": four}}
    source = open_model(folder(tmp_path, "mlx", config, change))
    assert not source.config.ternary_tables
    assert source.dense("token_embd").columns == 128
