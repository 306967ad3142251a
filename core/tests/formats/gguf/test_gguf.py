from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from bitnet_core.errors import ModelError
from bitnet_core.formats.gguf.container import GGUFFile
from bitnet_core.formats.gguf.writer import GGUFWriter
from bitnet_core.formats.open import open_model
from bitnet_core.formats.ternary.codes import unpack
from bitnet_hal.errors import StrictModeError

Make = Callable[..., object]


def test_reads_back_what_the_writer_wrote(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    data = np.arange(64, dtype="<f4").reshape(2, 32)
    values = {"s": "é", "b": True, "i": -3, "u": 7, "big": 1 << 40, "f": 0.5, "texts": ["", "x y"]}
    with GGUFWriter(path) as writer:
        for key, value in values.items():
            writer.metadata(key, value)
        writer.metadata("numbers", np.arange(5, dtype=np.int16))
        writer.metadata("flags", np.array([True, False]))
        writer.tensor("one", (2, 32), "F32", 256)
        writer.tensor("two", (3,), "F16", 6)
        writer.write("one", [data[:1], data[1:]])
        writer.write("two", [np.ones(3, "<f2")])
    file = GGUFFile(path)
    assert {key: file.metadata[key] for key in values} == values
    assert file.metadata["numbers"].tolist() == [0, 1, 2, 3, 4]
    assert file.metadata["flags"].tolist() == [True, False]
    assert file.tensors["one"].shape == (2, 32)
    assert (file.data(file.tensors["one"]).view("<f4") == data.reshape(-1)).all()
    assert file.data(file.tensors["two"]).view("<f2").tolist() == [1, 1, 1]
    assert list(tmp_path.iterdir()) == [path]


def test_the_public_reader_opens_what_we_write(tmp_path: Path, make_tiny: Make) -> None:
    gguf_reader = pytest.importorskip("gguf.gguf_reader", reason="pip install gguf")
    model = make_tiny()
    model.tensors = {name: t for name, t in model.tensors.items() if t[1] != "I2_S"}  # a type that it does not know
    reader = gguf_reader.GGUFReader(model.write(tmp_path / "a.gguf"))
    assert [t.name for t in reader.tensors] == list(model.tensors)
    assert bytes(reader.tensors[0].data.tobytes()) == model.tensors["token_embd.weight"][2].tobytes()
    assert bytes(reader.fields["general.name"].parts[-1]) == b"tiny"


@pytest.mark.parametrize("fault", ["nothing written", "too few bytes", "wrong order", "interrupt"])
def test_an_unfinished_file_leaves_nothing_behind(tmp_path: Path, fault: str) -> None:
    def write() -> None:
        with GGUFWriter(tmp_path / "a.gguf") as writer:
            writer.tensor("one", (4,), "F32", 16)
            writer.tensor("two", (4,), "F32", 16)
            if fault == "wrong order":
                writer.write("two", [np.zeros(4, "<f4")])
            if fault in ("too few bytes", "interrupt"):
                writer.write("one", [np.zeros(4 if fault == "interrupt" else 3, "<f4")])
            if fault == "interrupt":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt if fault == "interrupt" else ModelError):
        write()
    assert list(tmp_path.iterdir()) == []


def test_a_tiny_model_opens_and_gives_its_weights(tmp_path: Path, make_tiny: Make) -> None:
    model = make_tiny()
    source = open_model(model.write(tmp_path / "a.gguf"), strict=True)
    config = source.config
    assert (config.n_layers, config.hidden, config.ffn, config.n_heads, config.n_kv_heads) == (2, 128, 256, 2, 1)
    assert (config.head_dim, config.vocab, config.context) == (64, 64, 64)
    assert (config.activation, config.sub_norms, config.tied_head, config.rope_interleaved) == (
        "relu2",
        True,
        True,
        False,
    )
    assert source.format == "GGUF v3, I2_S layout A (assumed)"
    weight = source.ternary("blk.1.ffn_down")
    raw = model.tensors["blk.1.ffn_down.weight"][2]
    assert weight.codes.shape == (128, 64)
    assert not weight.codes.flags.owndata
    assert (weight.codes.reshape(-1) == raw[:-32]).all()
    assert weight.scales.tolist() == raw[-32:-28].view("<f4").tolist()
    assert unpack(weight.codes, 256).max() == 2
    assert source.dense("token_embd").dtype == "f16"
    assert source.vector("blk.0.attn_norm").dtype == np.float32
    assert source.has("blk.1.attn_sub_norm")
    assert not source.has("output")
    assert source.tokenizer["tokenizer.ggml.token_type"] == [1] * 64
    assert source.metadata["tokenizer.ggml.tokens"] == "[64 strings]"
    assert len(source.sha256()) == 64
    assert len(source.tensors) == 2 + 2 * 11
    with pytest.raises(ModelError, match=r"no tensor 'blk\.9\.attn_q'"):
        source.ternary("blk.9.attn_q")
    source.close()


def test_llama_models_rotate_interleaved_pairs_and_have_no_sub_norms(tmp_path: Path, make_tiny: Make) -> None:
    model = make_tiny("llama", sub_norms=False)
    model.add("output.weight", np.zeros((64, 128), "<f2"), "F16")
    model.add("rope_freqs.weight", np.ones(32, "<f4"), "F32")
    source = open_model(model.write(tmp_path / "a.gguf"))
    config = source.config
    assert (config.activation, config.sub_norms, config.tied_head, config.rope_interleaved) == (
        "silu",
        False,
        False,
        True,
    )
    assert source.vector("rope_freqs").shape == (32,)


def test_activation_rules(tmp_path: Path, make_tiny: Make) -> None:
    def activation(arch: str, **keys: object) -> tuple[str, str]:
        model = make_tiny(arch)
        model.keys |= {f"{arch}.{key}": value for key, value in keys.items()}
        source = open_model(model.write(tmp_path / "a.gguf"))
        return source.config.activation, source.findings[0].code

    assert activation("bitnet-25")[0] == "relu2"
    assert activation("bitnet", hidden_activation="relu2")[0] == "relu2"
    assert activation("bitnet-b1.58", hidden_activation="silu")[0] == "silu"
    assert activation("bitnet") == ("silu", "activation-ambiguous")
    with pytest.raises(ModelError, match="activation 'gelu'"):
        activation("bitnet", hidden_activation="gelu")


def test_strict_mode_refuses_warnings(tmp_path: Path, make_tiny: Make) -> None:
    path = make_tiny("bitnet").write(tmp_path / "a.gguf")
    with pytest.raises(StrictModeError, match="activation-ambiguous"):
        open_model(path, strict=True)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("general.architecture", "mamba", "architecture 'mamba' is not supported"),
        ("bitnet-b1.58.block_count", 3, "'blk.2"),
        ("bitnet-b1.58.embedding_length", 100, "shape"),
        ("bitnet-b1.58.attention.head_count", 0, "head_count"),
        ("bitnet-b1.58.attention.layer_norm_rms_epsilon", float("nan"), "positive number"),
        ("bitnet-b1.58.context_length", "x", "context_length"),
        ("bitnet-b1.58.rope.scaling.type", "longrope", "longrope"),
        ("bitnet-b1.58.rope.dimension_count", 32, "rope.dimension_count"),
        ("general.alignment", 24, "alignment"),
        ("split.count", 3, "one of 3 parts"),
    ],
)
def test_wrong_metadata_is_refused_by_name(
    tmp_path: Path, make_tiny: Make, key: str, value: object, message: str
) -> None:
    model = make_tiny()
    model.keys[key] = value
    with pytest.raises(ModelError, match=message):
        open_model(model.write(tmp_path / "a.gguf"))


def test_unknown_and_missing_tensors_are_refused_by_name(tmp_path: Path, make_tiny: Make) -> None:
    model = make_tiny()
    model.add("blk.0.attn_rot.weight", np.ones(8, "<f4"), "F32")
    with pytest.raises(ModelError, match=r"blk\.0\.attn_rot"):
        open_model(model.write(tmp_path / "a.gguf"))
    model = make_tiny()
    del model.tensors["blk.1.ffn_norm.weight"]
    with pytest.raises(ModelError, match=r"blk\.1\.ffn_norm' is missing"):
        open_model(model.write(tmp_path / "a.gguf"))


def test_biases_run_only_if_they_are_zero(tmp_path: Path, make_tiny: Make) -> None:
    model = make_tiny()
    model.add("blk.0.attn_q.bias", np.zeros(128, "<f4"), "F32")
    open_model(model.write(tmp_path / "a.gguf"))
    model.add("blk.0.attn_q.bias", np.ones(128, "<f4"), "F32")
    with pytest.raises(ModelError, match="bias"):
        open_model(model.write(tmp_path / "a.gguf"))


def test_an_extra_scale_tensor_multiplies(tmp_path: Path, make_tiny: Make) -> None:
    model = make_tiny("bitnet")
    plain = open_model(model.write(tmp_path / "a.gguf")).ternary("blk.0.attn_q").scales
    model.add("blk.0.attn_q.scale", np.array([4], "<f4"), "F32")
    assert open_model(model.write(tmp_path / "b.gguf")).ternary("blk.0.attn_q").scales == 4 * plain


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.gguf", b"", "empty"),
        ("a.gguf", b"GGUF", "too few"),
        ("a.gguf", b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(8), "big-endian"),
        ("a.gguf", b"GGUF" + struct.pack("<IQQ", 1, 0, 0) + bytes(8), "version 1"),
        ("a.gguf", b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0) + bytes(8), "tensors"),
        ("a.gguf", b"lmgg" + bytes(32), "older than GGUF"),
        ("a.safetensors", struct.pack("<Q", 2) + b"{}", "folder"),
        ("model_state_int2.pt", b"PK\x03\x04" + bytes(32), "pickle"),
        ("readme.txt", b"hello there, this is text", "not a model file"),
        ("ggml-model.bin", b"tjgg" + bytes(32), "older than GGUF"),
        ("a.gguf", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1", "Git LFS pointer"),
        ("a.gguf", b"<!DOCTYPE html><html><head><title>Sign in</title>", "a web page"),
    ],
    ids=range(12),
)
def test_other_files_are_refused_with_a_reason(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        open_model(path)


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        open_model(tmp_path / "none.gguf")
    with pytest.raises(ModelError, match="directory without config"):
        open_model(tmp_path)


def test_a_vocabulary_is_read_again_when_asked_for_again(tmp_path: Path, make_tiny: Make) -> None:
    """Opening keeps no strings beside the tokenizer that was built from them."""
    with closing(GGUFFile(make_tiny().write(tmp_path / "a.gguf"))) as file:
        before = {key: str(value) for key, value in file.metadata.items()}
        file.forget_metadata()
        assert {key: str(value) for key, value in file.metadata.items()} == before
        file.forget_metadata()
    with pytest.raises(ModelError, match="closed"):
        file.metadata  # noqa: B018  # a property that raises
