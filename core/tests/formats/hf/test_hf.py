from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitnet_core.errors import ModelError
from bitnet_core.formats.hf.safetensors_file import read_safetensors
from bitnet_core.formats.mapped import FileBytes
from bitnet_core.formats.open import open_model
from bitnet_core.formats.ternary import hf_packed
from bitnet_core.formats.ternary.codes import pack, unpack
from bitnet_hal.errors import StrictModeError
from safetensors.numpy import load_file, save, save_file

HIDDEN, FFN, VOCAB = 64, 96, 32
LINEARS = {
    "self_attn.q_proj": ("attn_q", (64, 64)),
    "self_attn.k_proj": ("attn_k", (32, 64)),
    "self_attn.v_proj": ("attn_v", (32, 64)),
    "self_attn.o_proj": ("attn_output", (64, 64)),
    "mlp.gate_proj": ("ffn_gate", (96, 64)),
    "mlp.up_proj": ("ffn_up", (96, 64)),
    "mlp.down_proj": ("ffn_down", (64, 96)),
}


class Folder:
    """A Hugging Face folder in pieces."""

    def __init__(self, sub_norms: tuple[str, str] | None = ("attn_sub_norm", "ffn_sub_norm")) -> None:
        rng = np.random.default_rng(0)
        self.config: dict[str, Any] = {
            "model_type": "bitnet",
            "hidden_size": HIDDEN,
            "intermediate_size": FFN,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "vocab_size": VOCAB,
            "max_position_embeddings": 64,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "hidden_act": "relu2",
            "tie_word_embeddings": True,
            "quantization_config": {"quant_method": "bitnet", "linear_class": "autobitlinear"},
        }
        layer = "model.layers.0."
        self.tensors = {
            "model.embed_tokens.weight": rng.standard_normal((VOCAB, HIDDEN)).astype(np.float16),
            "model.norm.weight": np.ones(HIDDEN, np.float32),
            f"{layer}input_layernorm.weight": np.ones(HIDDEN, np.float32),
            f"{layer}post_attention_layernorm.weight": np.ones(HIDDEN, np.float32),
        }
        if sub_norms:
            self.tensors[f"{layer}self_attn.{sub_norms[0]}.weight"] = np.ones(HIDDEN, np.float32)
            self.tensors[f"{layer}mlp.{sub_norms[1]}.weight"] = np.ones(FFN, np.float32)
        self.masters = {}
        for name, (_, shape) in LINEARS.items():
            self.masters[name] = rng.standard_normal(shape).astype(np.float32) * np.float32(0.05)
            self.tensors[f"{layer}{name}.weight"] = self.masters[name]

    def pack(self, scale: float) -> None:
        """Replace the master weights by packed weights with this weight_scale."""
        for name, (_, shape) in LINEARS.items():
            codes = pack((np.sign(np.rint(self.masters[name] * 20)) + 1).astype(np.uint8))
            self.tensors[f"model.layers.0.{name}.weight"] = hf_packed.encode_codes(codes, *shape)
            self.tensors[f"model.layers.0.{name}.weight_scale"] = np.array([scale], np.float32)

    def write(self, path: Path) -> Path:
        path.mkdir(exist_ok=True)
        (path / "config.json").write_text(json.dumps(self.config))
        (path / "tokenizer.json").write_text("{}")
        (path / "tokenizer_config.json").write_text('{"chat_template": "x"}')
        (path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
        save_file(self.tensors, path / "model.safetensors")
        return path


def test_masters_are_quantized_with_absmean(tmp_path: Path) -> None:
    folder = Folder()
    source = open_model(folder.write(tmp_path / "m"), strict=True)
    config = source.config
    assert (config.arch, config.activation, config.sub_norms, config.tied_head) == ("bitnet-b1.58", "relu2", True, True)
    assert (config.head_dim, config.rope_theta, config.rope_interleaved, config.context) == (32, 500000.0, False, 64)
    assert source.format == "Hugging Face safetensors, F32 masters (absmean)"
    assert [finding.code for finding in source.findings] == ["masters-quantized"]
    for name, (canonical, _) in LINEARS.items():
        master = folder.masters[name]
        weight = source.ternary(f"blk.0.{canonical}")
        scale = np.abs(master).mean()
        assert weight.scales[0] == pytest.approx(scale, rel=1e-6)
        assert (unpack(weight.codes, weight.columns) == np.clip(np.rint(master / scale), -1, 1) + 1).all()
    assert source.dense("token_embd").dtype == "f16"
    assert source.vector("blk.0.ffn_sub_norm").tolist() == [1.0] * FFN
    tokenizer = source.tokenizer
    assert tokenizer["tokenizer_json"] == "{}"
    assert tokenizer["tokenizer_config"] == {"chat_template": "x"}
    assert tokenizer["generation_config"] == {"eos_token_id": [1, 2]}
    assert len(source.tensors) == len(folder.tensors)


def test_bf16_masters_and_a_chat_template_file(tmp_path: Path) -> None:
    folder = Folder()
    path = folder.write(tmp_path / "m")
    (path / "chat_template.jinja").write_text("y")
    (path / "tokenizer_config.json").unlink()
    halves = {name: (a.astype("<f4").view("<u4") >> 16).astype("<u2") for name, a in folder.tensors.items()}
    content = save(halves)
    stop = 8 + int.from_bytes(content[:8], "little")
    text = content[8:stop].decode().replace('"U16"', '"BF16"')
    (path / "model.safetensors").write_bytes(header(text, content[stop:]))
    source = open_model(path)
    master = (folder.masters["mlp.up_proj"].view("<u4") >> 16 << 16).view("<f4")
    assert source.ternary("blk.0.ffn_up").scales[0] == pytest.approx(np.abs(master).mean(), rel=1e-6)
    assert source.dense("token_embd").dtype == "bf16"
    assert source.tokenizer["tokenizer_config"] == {"chat_template": "y"}


@pytest.mark.parametrize(
    ("linear_class", "stored", "expected"),
    [("autobitlinear", 0.05, 0.05), ("bitlinear", 20.0, 0.05), (None, 20.0, 0.05)],
)
def test_packed_weights_in_both_scale_directions(
    tmp_path: Path, linear_class: str | None, stored: float, expected: float
) -> None:
    folder = Folder()
    folder.pack(stored)
    folder.config["quantization_config"] = {"quant_method": "bitnet"}
    if linear_class:
        folder.config["quantization_config"]["linear_class"] = linear_class
    source = open_model(folder.write(tmp_path / "m"), strict=True)
    for name, (canonical, shape) in LINEARS.items():
        weight = source.ternary(f"blk.0.{canonical}")
        assert (weight.rows, weight.columns) == shape
        assert (unpack(weight.codes, weight.columns) == np.sign(np.rint(folder.masters[name] * 20)) + 1).all()
        assert weight.scales[0] == pytest.approx(expected, rel=1e-6)
    assert "packed U8" in source.format


@pytest.mark.parametrize(("linear_class", "stored"), [("autobitlinear", 20.0), ("bitlinear", 0.05)])
def test_a_scale_that_contradicts_the_class_is_a_warning(tmp_path: Path, linear_class: str, stored: float) -> None:
    folder = Folder()
    folder.pack(stored)
    folder.config["quantization_config"]["linear_class"] = linear_class
    path = folder.write(tmp_path / "m")
    assert [finding.code for finding in open_model(path).findings] == ["scale-direction"]
    with pytest.raises(StrictModeError, match="scale-direction"):
        open_model(path, strict=True)


def test_1bitllm_names(tmp_path: Path) -> None:
    folder = Folder(("inner_attn_ln", "ffn_layernorm"))
    del folder.config["quantization_config"]
    folder.config |= {"model_type": "llama", "weight_bits": 1, "input_bits": 8, "hidden_act": "silu"}
    folder.config["tie_word_embeddings"] = False
    folder.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(16, np.float32)
    config = open_model(folder.write(tmp_path / "m")).config
    assert (config.arch, config.activation, config.sub_norms, config.tied_head) == ("bitnet", "silu", True, True)


def test_llama_models_without_sub_norms(tmp_path: Path) -> None:
    folder = Folder(None)
    folder.pack(20.0)
    folder.config |= {"model_type": "llama", "tie_word_embeddings": False, "quantization_config": {}}
    folder.config["quantization_config"] = {"quant_method": "bitnet"}
    folder.config["rope_scaling"] = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.5,
        "original_max_position_embeddings": 32,
    }
    del folder.config["hidden_act"]
    folder.tensors["lm_head.weight"] = np.zeros((VOCAB, HIDDEN), np.float16)
    config = open_model(folder.write(tmp_path / "m")).config
    assert (config.arch, config.activation, config.sub_norms, config.tied_head) == ("llama", "silu", False, False)
    assert (config.rope_scaling, config.rope_factor, config.rope_original_context) == ("llama3", 8.0, 32)
    assert (config.rope_low_freq_factor, config.rope_high_freq_factor) == (1.5, 4.0)


def test_shards_and_recent_rope_parameters(tmp_path: Path) -> None:
    folder = Folder()
    folder.config["rope_parameters"] = {"rope_theta": 1234.0, "rope_type": "linear", "factor": 2.0}
    path = folder.write(tmp_path / "m")
    (path / "model.safetensors").unlink()
    names = sorted(folder.tensors)
    files = {name: f"model-0000{i % 2}.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: folder.tensors[name] for name in names if files[name] == file}, path / file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    source = open_model(path)
    assert (source.config.rope_theta, source.config.rope_scaling, source.config.rope_factor) == (1234.0, "linear", 2.0)
    assert source.ternary("blk.0.ffn_up").rows == FFN
    assert len(source.sha256()) == 64
    (path / "model-00001.safetensors").unlink()
    with pytest.raises(ModelError, match="which is missing in the folder; get it as well"):
        open_model(path)
    (path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../secret.safetensors"}}')
    with pytest.raises(ModelError, match="not a safetensors file in the folder"):
        open_model(path)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_git_lfs_pointers_are_named(tmp_path: Path, name: str) -> None:
    path = Folder().write(tmp_path / "m")
    (path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 123\n")
    with pytest.raises(ModelError, match=f"{name}: is a Git LFS pointer"):
        open_model(path)


def change(**values: object) -> Callable[[Folder], None]:
    return lambda folder: folder.config.update(values)


def add(name: str, array: np.ndarray) -> Callable[[Folder], None]:
    return lambda folder: folder.tensors.update({name: array})


Q = "model.layers.0.self_attn.q_proj."


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (change(model_type="mistral"), "model_type 'mistral'"),
        (change(model_type="llama", quantization_config=None), "not a ternary model"),
        (change(model_type="minicpm"), "supported as a GGUF file alone: use the model's GGUF file"),
        (change(model_type="hunyuan_v1_dense"), "supported as a GGUF file alone"),
        (change(model_type="qwen3_5"), r"use the model's GGUF file \(Q2_0, PQ2_0, PTQ1_0 or Q1_0\)"),
        (change(model_type="prism_hadamard_qwen35"), r"rotated.*use the model's GGUF file \(PQ2_0 or PTQ1_0\)"),
        (change(model_type="\ud800"), "half a character"),
        (change(quantization_config={"quant_method": "gptq"}), "gptq"),
        (change(quantization_config={"use_rms_norm": True}), "use_rms_norm"),
        (change(quantization_config={"modules_to_not_convert": ["lm_head", "x_proj"]}), "x_proj"),
        (change(hidden_act="gelu"), "gelu"),
        (change(num_attention_heads=3), "num_attention_heads"),
        (change(hidden_size=10**400), "whole number"),
        (change(rope_theta=10**400), "larger than"),
        (change(rope_scaling={"type": "dynamic"}), "dynamic"),
        (change(partial_rotary_factor=0.5), "partial_rotary_factor"),
        (change(intermediate_size=100), "shape"),
        (add(f"{Q}bias", np.ones(64, np.float32)), "bias"),
        (add(f"{Q}rms_norm.weight", np.ones(64, np.float32)), "unknown"),
        (add("vision.weight", np.ones(64, np.float32)), "unknown"),
        (add("model.layers.0.self_attn.inner_attn_ln.weight", np.ones(64, np.float32)), "twice"),
        (lambda folder: folder.tensors.pop("model.norm.weight"), "'output_norm' is missing"),
    ],
)
def test_unsupported_folders_are_refused_by_name(
    tmp_path: Path, spoil: Callable[[Folder], object], message: str
) -> None:
    folder = Folder()
    spoil(folder)
    with pytest.raises(ModelError, match=message):
        open_model(folder.write(tmp_path / "m"))


def test_zero_biases_are_ignored(tmp_path: Path) -> None:
    folder = Folder()
    folder.tensors[f"{Q}bias"] = np.zeros(64, np.float32)
    open_model(folder.write(tmp_path / "m"))


def test_packed_weights_without_a_scale_are_refused(tmp_path: Path) -> None:
    folder = Folder()
    folder.pack(0.05)
    del folder.tensors[f"{Q}weight_scale"]
    with pytest.raises(ModelError, match="weight_scale"):
        open_model(folder.write(tmp_path / "m"))


def test_folders_without_weights(tmp_path: Path) -> None:
    path = Folder().write(tmp_path / "m")
    (path / "model.safetensors").rename(path / "a.safetensors")
    open_model(path)  # a single file of any name
    (path / "a.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pickles"):
        open_model(path)
    (path / "pytorch_model.bin").unlink()
    with pytest.raises(ModelError, match="no safetensors file"):
        open_model(path)
    (path / "config.json").rename(path / "x.gguf")
    with pytest.raises(ModelError, match="pass a GGUF file in it"):
        open_model(path)


def header(text: str, data: bytes = b"") -> bytes:
    return len(text).to_bytes(8, "little") + text.encode() + data


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "too few"),
        ((1 << 60).to_bytes(8, "little"), "header of"),
        (header("{"), "JSON"),
        (header("[]"), "not hold a JSON object"),
        (header("[" * 100000), "nested too deeply"),
        (header('{"a": 1}'), "no description"),
        (header('{"a": {"dtype": "F4", "shape": [1], "data_offsets": [0, 4]}}', b"1234"), "type 'F4'"),
        (header('{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}', b"1234"), "shape"),
        (header('{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', b"1234"), "4 bytes"),
        (header('{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}', b"1234"), "cut off"),
        (header('{"a": {"dtype": "F32", "shape": [true], "data_offsets": [0, 4]}}', b"1234"), "shape"),
        (header('{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}', b"1234"), "offsets"),
        (header('{"a": 1, "a": 2}'), "twice"),
        (
            header(
                '{"a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},'
                ' "b": {"dtype": "U8", "shape": [2], "data_offsets": [2, 4]}}',
                b"1234",
            ),
            "overlaps",
        ),
    ],
    ids=range(14),
)
def test_unsound_safetensors_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        read_safetensors(FileBytes(path, 8))


def test_reads_what_the_public_library_writes(tmp_path: Path) -> None:
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(7, np.int64), "c": np.empty(0, np.uint8)}
    save_file(arrays, tmp_path / "a.safetensors", metadata={"x": "y"})
    tensors = read_safetensors(FileBytes(tmp_path / "a.safetensors", 8))
    assert {name: t.shape for name, t in tensors.items()} == {name: a.shape for name, a in arrays.items()}
    assert all(t.data.tobytes() == arrays[name].tobytes() for name, t in tensors.items())


def test_a_template_file_wins_over_the_one_in_the_configuration(tmp_path: Path) -> None:
    """The order of transformers (tokenization_utils_base.py)."""
    path = Folder().write(tmp_path / "m")
    assert open_model(path).tokenizer["tokenizer_config"]["chat_template"] == "x"
    (path / "chat_template.jinja").write_text("new")
    assert open_model(path).tokenizer["tokenizer_config"]["chat_template"] == "new"
    (path / "additional_chat_templates").mkdir()
    (path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert open_model(path).tokenizer["tokenizer_config"]["chat_template"] == "new"
    (path / "additional_chat_templates" / "default.jinja").write_text("newest")
    assert open_model(path).tokenizer["tokenizer_config"]["chat_template"] == "newest"


def test_rope_scaling_wins_over_rope_parameters(tmp_path: Path) -> None:
    """The order of transformers (convert_rope_params_to_dict)."""
    folder = Folder()
    folder.config["rope_parameters"] = {"rope_type": "default", "rope_theta": 7.0}
    assert open_model(folder.write(tmp_path / "m")).config.rope_theta == 7.0
    folder.config["rope_scaling"] = {"rope_type": "linear", "factor": 4.0}
    config = open_model(folder.write(tmp_path / "m")).config
    assert (config.rope_scaling, config.rope_factor, config.rope_theta) == ("linear", 4.0, 500000.0)


def test_ends_of_text_are_those_of_generation_config_first(tmp_path: Path) -> None:
    folder = Folder()
    folder.config["eos_token_id"] = 7
    path = folder.write(tmp_path / "m")
    assert open_model(path).tokenizer["generation_config"]["eos_token_id"] == [1, 2]
    (path / "generation_config.json").unlink()
    assert open_model(path).tokenizer["generation_config"]["eos_token_id"] == 7


def test_a_llama_folder_of_ternary_floats_runs(tmp_path: Path) -> None:
    """TriLM's unpacked folders: no quantization_config, and floats that are ternary with one scale a row."""
    folder = Folder(sub_norms=None)
    folder.config.update(model_type="llama", hidden_act="silu", quantization_config=None)
    for name in LINEARS:
        scales = np.linspace(0.01, 0.02, len(folder.masters[name]), dtype=np.float32).astype(np.float16)
        signs = np.sign(np.rint(folder.masters[name] * 20)).astype(np.float16)
        folder.tensors[f"model.layers.0.{name}.weight"] = signs * scales[:, None]
    source = open_model(folder.write(tmp_path / "m"), strict=True)
    assert source.config.arch == "llama"
    assert source.format == "Hugging Face safetensors, F16 that are ternary in groups"
    weight = source.ternary("blk.0.ffn_down")
    assert weight.scale_kind == "row"
    stored = folder.tensors["model.layers.0.mlp.down_proj.weight"].astype(np.float32)
    assert ((unpack(weight.codes, 96).astype(np.float32) - 1) * weight.scales[:, None] == stored).all()


@pytest.mark.parametrize("name", ["onnx/model_q2f16.onnx", "model.onnx"])
def test_onnx_is_named(tmp_path: Path, name: str) -> None:
    path = Folder().write(tmp_path / "m")
    (path / "model.safetensors").unlink()
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).write_bytes(b"\x08\x07")
    for what in (path, path / name):
        with pytest.raises(ModelError, match=r"ONNX.*MatMulNBits.*GGUF file"):
            open_model(what)


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "generation_config.json"])
def test_lone_surrogates_are_one_clear_error(tmp_path: Path, file: str) -> None:
    path = Folder().write(tmp_path / "m")
    content = json.loads((path / file).read_text()) | {"bos_token": "\ud800"}
    (path / file).write_text(json.dumps(content))
    with pytest.raises(ModelError, match=r"half a character \(a lone surrogate, such as \\ud800\)"):
        _ = open_model(path).tokenizer
    (path / file).write_text(json.dumps(content | {"bos_token": "\U0001f642"}))
    _ = open_model(path).tokenizer


def test_an_mlx_folder_in_one_bit(tmp_path: Path) -> None:
    """Bonsai's: the golden MLX folder with binary packs of the same shapes."""
    golden = Path(__file__).parents[2] / "golden" / "qwen3" / "qwen3-untied" / "mlx"
    path = tmp_path / "m"
    path.mkdir()
    for file in golden.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    config = json.loads((golden / "config.json").read_text())
    config["quantization"] = config["quantization_config"] = {"group_size": 128, "bits": 1}
    (path / "config.json").write_text(json.dumps(config))
    rng, tensors = np.random.default_rng(0), load_file(golden / "model.safetensors")
    for name, words in list(tensors.items()):
        if words.dtype == np.uint32:
            rows, count = words.shape
            tensors[name] = rng.integers(0, 1 << 32, (rows, count // 2), dtype=np.uint32)
            stem = name.removesuffix(".weight")
            scales = np.full((rows, count * 16 // 128), 0.25, np.float16)
            tensors[f"{stem}.scales"], tensors[f"{stem}.biases"] = scales, -scales / 2
    save_file(tensors, path / "model.safetensors")
    source = open_model(path)
    assert source.format == "MLX safetensors, binary 1-bit packs"
    weight = source.ternary("blk.0.attn_q")
    words = tensors["model.layers.0.self_attn.q_proj.weight"].view(np.uint8)
    assert (unpack(weight.codes, weight.columns) == 2 * np.unpackbits(words, axis=1, bitorder="little")).all()
    assert set(weight.scales.reshape(-1).tolist()) == {0.125}
