"""Files of arch qwen35 with unsupported or contradictory keys or tensors end in one clear message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitnet_core.errors import ModelError
from bitnet_core.formats.gguf.container import GGUFFile
from bitnet_core.formats.gguf.writer import GGUFWriter
from bitnet_core.formats.names import ternaries
from bitnet_core.formats.open import open_model

FILE = Path(__file__).parents[2] / "golden" / "bonsai2" / "rotated-PTQ1_0.gguf"
GONE = object()
MetadataReader = dict[str, Any]
Tensors = dict[str, tuple[tuple[int, ...], str, np.ndarray]]


def rewritten(path: Path, change: Callable[[MetadataReader, Tensors], None]) -> Path:
    """Return a copy of the file with other keys and tensors."""
    file = GGUFFile(FILE)
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


def signs() -> np.ndarray:
    return np.array(GGUFFile(FILE).metadata["prism.hadamard.sign_values"])


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("prism.hadamard.version", 2, "version is 2; only 1"),
        ("prism.hadamard.version", GONE, "version' is missing"),
        ("prism.hadamard.transform", "walsh-ordered", "only normalized-sylvester-walsh-hadamard is supported"),
        ("prism.hadamard.axis", "output", "only input-last-dimension is supported"),
        ("prism.hadamard.axis", 3, "axis' is 3, not a string"),
        ("prism.hadamard.block_size", 96, "block_size 96 is not a power of two that divides 256, 384, 512"),
        ("prism.hadamard.block_size", 256, "block_size 256 is not a power of two that divides"),
        ("prism.hadamard.block_size", 1 << 20, "not a whole number from 1 to 16384"),
        ("prism.hadamard.sign_mode", "random", "only explicit and identity"),
        ("prism.hadamard.sign_widths", np.array([256, 384], np.int32), "sign_widths is [256, 384], not 256, 384, 512"),
        ("prism.hadamard.sign_widths", np.array([256, 384, -512], np.int32), "not 256, 384, 512"),
        ("prism.hadamard.sign_widths", "256", "not a list of whole numbers"),
        ("prism.hadamard.sign_values", np.ones(1151, np.int32), "must be 1152 numbers, each 1 or -1"),
        ("prism.hadamard.sign_values", np.zeros(1152, np.int32), "must be 1152 numbers, each 1 or -1"),
        ("prism.hadamard.sign_values", np.ones(1152, np.float32), "not a list of whole numbers"),
        ("prism.hadamard.weight_names", ["output.weight"], "weight_names lacks 'blk.0.attn_gate.weight'"),
        ("prism.hadamard.inverse_weight_names", ["output.weight"], "inverse_weight_names names 'output.weight'"),
        ("prism.hadamard.inverse_weight_names", GONE, "inverse_weight_names lacks 'token_embd.weight'"),
        ("prism.hadamard.gdn_v_grouped", 1, "gdn_v_grouped' is 1, not true or false"),
        ("prism.hadamard.output_axis", "x", "'prism.hadamard.output_axis' is unknown"),
        ("qwen35.nextn_predict_layers", 1, "layer 1 has no tensors blk.1.nextn.*"),
        ("qwen35.nextn_predict_layers", 2, "nextn_predict_layers 2 leaves no layer of the 2"),
        ("qwen35.nextn_predict_layers", "1", "nextn_predict_layers' is '1', not a whole number from 0"),
        ("qwen35.unheard_of", 1, "'qwen35.unheard_of' is not supported, and may change the model"),
        ("qwen35.expert_count", 8, "'qwen35.expert_count' is not supported"),
        ("qwen35.attention.sliding_window", 9, "'qwen35.attention.sliding_window' is not supported"),
        ("qwen35.rope.scaling.factor", 4.0, "'qwen35.rope.scaling.factor' is not supported"),
        ("qwen35.rope.dimension_count", 15, "rope.dimension_count 15 is odd"),
        ("qwen35.rope.dimension_count", 128, "not a whole number from 1 to 64"),
        ("qwen35.rope.dimension_sections", np.array([3, 3, 3, 0], np.int32), "do not add up to 8 pairs"),
        ("qwen35.rope.dimension_sections", np.array([9, -1, 0, 0], np.int32), "do not add up to 8 pairs"),
        ("qwen35.full_attention_interval", 0, "full_attention_interval' is 0"),
        ("qwen35.full_attention_interval", 1, "full_attention_interval 1 leaves no delta net"),
        ("qwen35.full_attention_interval", 3, "full_attention_interval 3 leaves no delta net, or no attention"),
        ("prism.hadamard.block_size", 1, "block_size 1 is not a power of two"),
        ("qwen35.full_attention_interval", 1 << 30, "full_attention_interval' is 1073741824"),
        ("qwen35.ssm.group_count", 4, "must each be a multiple of the next"),
        ("qwen35.ssm.inner_size", 385, "must each be a multiple of the next"),
        ("qwen35.ssm.inner_size", 6 << 20, "value heads of 1048576 elements; at most 1024"),
        ("qwen35.ssm.state_size", 1 << 20, "state_size' is 1048576, not a whole number from 1 to 1024"),
        ("qwen35.ssm.conv_kernel", 1000, "conv_kernel' is 1000"),
        ("qwen35.ssm.conv_kernel", 1, "conv_kernel is 1, which is not a convolution"),
        ("qwen35.ssm.conv_kernel", 3, "ssm_conv1d' has the shape [640, 4]; the metadata requires [640, 3]"),
    ],
)
def test_keys_that_are_refused(tmp_path: Path, key: str, value: Any, words: str) -> None:
    def change(keys: MetadataReader, tensors: Tensors) -> None:
        if value is GONE:
            del keys[key]
        else:
            keys[key] = value

    assert words in message(rewritten(tmp_path / "m.gguf", change))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("qwen35.nextn_predict_layers", 0),
        ("qwen35.attention.sliding_window", 0),
        ("qwen35.expert_count", 0),
        ("qwen35.vision.block_count", 27),
    ],
)
def test_keys_that_change_nothing(tmp_path: Path, key: str, value: Any) -> None:
    _read(rewritten(tmp_path / "m.gguf", lambda keys, _: keys.update({key: value})))


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("blk.0.ssm_a", GONE, "tensor 'blk.0.ssm_a' is missing"),
        ("blk.0.ssm_dt.bias", GONE, "tensor 'blk.0.ssm_dt' is missing"),
        ("blk.1.post_attention_norm.weight", GONE, "tensor 'blk.1.ffn_norm' is missing"),
        ("blk.1.attn_gate.weight", ((384, 256), "F32", np.zeros((384, 256), "<f4")), "blk.1.attn_gate (unused)"),
        ("blk.1.ssm_a", ((6,), "F32", np.zeros(6, "<f4")), "tensor 'blk.1.ssm_a' of shape [6] is unknown"),
        ("blk.2.attn_norm.weight", ((256,), "F32", np.zeros(256, "<f4")), "tensor 'blk.2.attn_norm' of shape"),
        ("blk.0.ssm_alpha.weight", ((6, 256), "F32", np.full((6, 256), np.nan, "<f4")), "infinite or not a number"),
        ("blk.1.attn_q.weight", ((384, 256), "F32", np.zeros((384, 256), "<f4")), "queries and gates need [768, 256]"),
        ("blk.1.attn_q.scale", ((1,), "F32", np.ones(1, "<f4")), "tensor 'blk.1.attn_q.scale' of shape"),
    ],
)
def test_tensors_that_are_refused(tmp_path: Path, name: str, tensor: Any, words: str) -> None:
    def change(keys: MetadataReader, tensors: Tensors) -> None:
        if tensor is GONE:
            del tensors[name]
        else:
            shape, dtype, values = tensor
            tensors[name] = (shape, dtype, np.ascontiguousarray(values).view(np.uint8).reshape(-1))

    assert words in message(rewritten(tmp_path / "m.gguf", change))


def test_illegal_codes_are_refused_in_a_matrix_that_is_read_in_two_parts(tmp_path: Path) -> None:
    """PQ2_0 in place of attn_q's PTQ1_0, with a code 3 in a gate's row."""

    def change(keys: MetadataReader, tensors: Tensors) -> None:
        blocks = np.full((768 * 2, 34), 0b01010101, np.uint8)
        blocks[:, :2] = np.array([0.02], "<f2").view(np.uint8)
        blocks[100 * 2, 2] |= 0b11
        tensors["blk.1.attn_q.weight"] = ((768, 256), "PQ2_0", blocks.reshape(-1))

    assert "illegal ternary code 3" in message(rewritten(tmp_path / "m.gguf", change))


@pytest.mark.parametrize("keep", [100, 5000, 200000, -1])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, keep: int) -> None:
    copy = tmp_path / "m.gguf"
    copy.write_bytes(FILE.read_bytes()[:keep])
    assert str(copy) in message(copy)


def test_signs_that_are_all_1_need_not_be_said(tmp_path: Path, float64_model: Any) -> None:
    def identity(keys: MetadataReader, tensors: Tensors) -> None:
        keys["prism.hadamard.sign_mode"] = "identity"
        for name in ("sign_widths", "sign_values"):
            del keys[f"prism.hadamard.{name}"]

    def ones(keys: MetadataReader, tensors: Tensors) -> None:
        keys["prism.hadamard.sign_values"] = np.abs(signs())

    found = [open_model(rewritten(tmp_path / f"{n}.gguf", change)) for n, change in enumerate((identity, ones))]
    one, other = (float64_model(source).logits([1, 2, 3]) for source in found)
    np.testing.assert_array_equal(one, other)


def test_a_model_without_a_rotation_is_read_too(tmp_path: Path, float64_model: Any) -> None:
    """A model such as Bonsai 27B: with these weights its logits differ."""

    def plain(keys: MetadataReader, tensors: Tensors) -> None:
        for key in [key for key in keys if key.startswith("prism.")]:
            del keys[key]

    source = open_model(rewritten(tmp_path / "m.gguf", plain), strict=True)
    assert (source.config.hadamard, source.config.delta is None) == (0, False)
    assert np.isfinite(float64_model(source).logits([1, 2, 3])).all()
