"""Conversions keep every ternary value and scale, the rules of the model, and the tokenizer."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bitnet_core.api import load
from bitnet_core.errors import ModelError
from bitnet_core.formats.convert.convert import convert, has_masters
from bitnet_core.formats.convert.gguf import metadata
from bitnet_core.formats.convert.target import ENCODINGS, Target
from bitnet_core.formats.gguf.writer import GGUFWriter
from bitnet_core.formats.hf.names import canonical
from bitnet_core.formats.names import matrices, vectors
from bitnet_core.formats.open import open_model
from bitnet_core.formats.ternary.codes import unpack
from bitnet_core.model.source import ModelSource
from bitnet_core.model.weights import TernaryWeight
from bitnet_core.options.loading import Layout
from bitnet_core.tokenizer import load_tokenizer
from bitnet_core.tokenizer.chat import ChatTemplate
from safetensors.numpy import load_file

MakeFolder = Callable[..., Path]
TOKENS = [256, 5, 99, 258, 12, 77, 263, 40]
TALK = [{"role": "user", "content": "the <|eot_id|>"}]


def converted(source: Path, destination: Path, target: Target) -> Path:
    opened = open_model(source)
    done = convert(opened, destination, target, verify=True)
    opened.close()
    assert done.path == destination
    assert done.verified
    assert [path.name for path in destination.parent.iterdir() if path.name.startswith(".")] == []
    return destination


def weights(source: ModelSource) -> dict[str, np.ndarray]:
    """Return every ternary matrix as its values times scales."""
    found = {}
    for name in matrices(source.config):
        weight = source.ternary(name)
        assert weight.scale_kind == "tensor"
        found[name] = (unpack(weight.codes, weight.columns).astype(np.float32) - 1) * weight.scales[0]
    return found


def logits(path: Path, layout: Layout | None = None) -> np.ndarray:
    with load(path, device="numpy", kv_cache_type="f32", layout=layout) as model:
        return np.asarray(model.logits(TOKENS))


@pytest.mark.parametrize("llama", [False, True], ids=["bitnet", "llama"])
def test_round_trip_through_every_target(make_folder: MakeFolder, tmp_path: Path, llama: bool) -> None:
    folder = make_folder(llama=llama)
    first = converted(folder, tmp_path / "a.gguf", "i2_s")
    # an f16 scale is what TQ files can hold; from there on nothing may change
    start = converted(first, tmp_path / "start.gguf", "tq2_0")
    path, seen = start, []
    for target, name in [("tq1_0", "b.gguf"), ("safetensors", "c"), ("i2_s", "d.gguf"), ("tq2_0", "e.gguf")]:
        path = converted(path, tmp_path / name, target)  # type: ignore[arg-type]
        source, origin = open_model(path, layout="A" if target == "i2_s" else None), open_model(start)
        seen.append(source.format)
        if source.config.rope_interleaved == origin.config.rope_interleaved:
            expected = weights(origin)
            for tensor, values in weights(source).items():
                np.testing.assert_array_equal(values, expected[tensor])
        for tensor in vectors(origin.config):
            np.testing.assert_array_equal(source.vector(tensor), origin.vector(tensor))
        talks = [ChatTemplate(load_tokenizer(one.tokenizer)) for one in (source, origin)]
        assert talks[0].chat_tokens(TALK) == talks[1].chat_tokens(TALK)
    np.testing.assert_array_equal(logits(tmp_path / "b.gguf"), logits(start))
    np.testing.assert_array_equal(logits(tmp_path / "d.gguf", "A"), logits(start))
    # a llama folder rotates other pairs than a llama GGUF file: the same sums in another order
    far = 1e-4 if llama else 0
    np.testing.assert_allclose(logits(tmp_path / "c"), logits(start), rtol=0, atol=far)
    np.testing.assert_allclose(logits(first, "A"), logits(folder), rtol=0, atol=far)
    assert "TQ1_0" in seen[0]
    assert "packed U8" in seen[1]


def test_masters_keep_their_exact_scale_in_i2_s_and_safetensors(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder()
    for target, name in [("i2_s", "a.gguf"), ("safetensors", "b")]:
        written = open_model(converted(folder, tmp_path / name, target))  # type: ignore[arg-type]
        for tensor, values in weights(open_model(folder)).items():
            np.testing.assert_array_equal(weights(written)[tensor], values)


def test_rounded_scales_are_said(make_folder: MakeFolder, tmp_path: Path) -> None:
    source = open_model(make_folder(llama=True))
    assert [f.code for f in convert(source, tmp_path / "a.gguf", "tq2_0").findings] == ["scales-rounded"]
    assert convert(open_model(tmp_path / "a.gguf"), tmp_path / "b.gguf", "tq1_0").findings == ()
    assert convert(source, tmp_path / "c.gguf", "i2_s").findings == ()


def test_what_llama_cpp_will_not_heed_is_said(make_folder: MakeFolder, tmp_path: Path) -> None:
    for name, activation, expected in [("a", "relu2", ["llama.cpp-activation"]), ("b", "silu", [])]:
        start = convert(open_model(make_folder(name, hidden_act=activation)), tmp_path / f"{name}.gguf", "tq2_0").path
        assert [f.code for f in convert(open_model(start), tmp_path / "tq", "tq1_0", force=True).findings] == expected
        assert convert(open_model(start), tmp_path / "i2_s", "i2_s", force=True).findings == ()


@pytest.mark.parametrize(
    ("hidden", "target", "instead"),
    [(192, "i2_s", "q2_0 or safetensors"), (384, "tq2_0", "i2_s or q2_0 or safetensors")],
)
def test_shapes_that_do_not_fit_are_refused(
    make_folder: MakeFolder, tmp_path: Path, hidden: int, target: Target, instead: str
) -> None:
    source = open_model(make_folder(hidden_size=hidden, num_attention_heads=hidden // 64, num_key_value_heads=1))
    with pytest.raises(ModelError, match=f"has {hidden}; convert to {instead} instead"):
        convert(source, tmp_path / "a.gguf", target)
    assert not (tmp_path / "a.gguf").exists()


def test_several_scales_in_a_matrix(make_folder: MakeFolder, tmp_path: Path) -> None:
    source = open_model(make_folder())

    def rows(name: str) -> TernaryWeight:
        weight = ternary(name)
        scales = np.float32(2.0) ** -(5 + np.arange(weight.rows) % 3)
        return replace(weight, scales=scales.astype(np.float32), scale_kind="row")

    ternary, source.ternary = source.ternary, rows  # type: ignore[method-assign]
    for target in ("i2_s", "safetensors"):
        with pytest.raises(ModelError, match=r"scale per row.*convert to tq2_0"):
            convert(source, tmp_path / "a", target)  # type: ignore[arg-type]
    convert(source, tmp_path / "a.gguf", "tq1_0", verify=True)
    weight = open_model(tmp_path / "a.gguf").ternary("blk.0.attn_q")
    assert weight.scale_kind == "row"
    np.testing.assert_array_equal(weight.scales, rows("blk.0.attn_q").scales)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gguf", "masters"]


@pytest.mark.parametrize("target", [*(target for target in ENCODINGS if target != "stq1_0"), "safetensors"])
def test_one_matrix_is_in_memory_at_a_time(
    make_folder: MakeFolder, tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that Python and numpy allocate; the source's file is mapped, and its pages are given back."""
    monkeypatch.setattr("bitnet_core.formats.ternary.codes.CHUNK", 1 << 17)  # in proportion to these matrices
    folder = make_folder(hidden_size=512, intermediate_size=4096)
    source = open_model(folder)
    largest = 4 * 512 * 4096
    assert (folder / "model.safetensors").stat().st_size > 6 * largest
    tracemalloc.start()
    try:
        convert(source, tmp_path / "out", target, verify=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < largest


@pytest.mark.parametrize("scaling", ["linear", "yarn", "llama3"])
def test_rope_scaling_survives(make_folder: MakeFolder, tmp_path: Path, scaling: str) -> None:
    group = {"rope_type": scaling, "factor": 4.0, "original_max_position_embeddings": 32}
    folder = make_folder(rope_scaling=group, rope_theta=1000042.0, rms_norm_eps=1e-6)
    gguf = converted(folder, tmp_path / "a.gguf", "i2_s")
    np.testing.assert_allclose(logits(gguf, "A"), logits(folder), rtol=0, atol=1e-4 if scaling == "llama3" else 0)
    if scaling == "llama3":
        with pytest.raises(ModelError, match="rope_freqs"):
            convert(open_model(gguf, layout="A"), tmp_path / "b", "safetensors")
    else:
        np.testing.assert_array_equal(logits(converted(gguf, tmp_path / "b", "safetensors")), logits(folder))


def test_squared_relu_without_sub_norms_and_silu_with_them(make_folder: MakeFolder, tmp_path: Path) -> None:
    silu = open_model(converted(make_folder(hidden_act="silu"), tmp_path / "a.gguf", "tq2_0"))
    assert (silu.config.arch, silu.config.activation, silu.config.sub_norms) == ("bitnet", "silu", True)
    relu2 = open_model(converted(make_folder("b", llama=True, hidden_act="relu2"), tmp_path / "b.gguf", "tq2_0"))
    assert (relu2.config.arch, relu2.config.activation, relu2.config.sub_norms) == ("llama", "relu2", False)


def test_quantizing_float_matrices_of_gguf(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = open_model(make_folder())
    convert(folder, tmp_path / "reference.gguf", "i2_s")
    for dtype in ("F32", "F16"):
        path = masters_gguf(folder, tmp_path / f"{dtype}.gguf", dtype)
        with pytest.raises(ModelError, match="not ternary"):
            open_model(path)
        source = open_model(path, quantize=True)
        assert has_masters(source)
        convert(source, tmp_path / "quantized.gguf", "i2_s", force=True, verify=True)
        found = weights(open_model(tmp_path / "quantized.gguf", layout="A"))
        for name, values in weights(open_model(tmp_path / "reference.gguf", layout="A")).items():
            np.testing.assert_allclose(np.abs(found[name]).max(), np.abs(values).max(), rtol=1e-3)
            assert (np.sign(found[name]) == np.sign(values)).mean() > 0.999
    assert not has_masters(open_model(tmp_path / "quantized.gguf", layout="A"))
    ternary = masters_gguf(open_model(tmp_path / "quantized.gguf", layout="A"), tmp_path / "ternary.gguf", "F32")
    again = open_model(ternary, quantize=True)  # floats that are ternary already keep their scale
    for name, values in weights(again).items():
        np.testing.assert_array_equal(values, found[name])


def masters_gguf(source: ModelSource, path: Path, dtype: str) -> Path:
    """Write the model with float matrices: the folder's master weights, or the ternary values of a GGUF file."""
    kind = {"F32": "<f4", "F16": "<f2"}[dtype]
    if source.path.is_dir():
        stored = load_file(source.path / "model.safetensors")
        values = {canonical(name) or "": array for name, array in stored.items()}
    else:
        values = weights(source)
    with GGUFWriter(path) as writer:
        for key, value in metadata(source, "bitnet-b1.58", ENCODINGS["i2_s"]).items():
            writer.metadata(key, value)
        table = source.dense("token_embd")
        tensors = {"token_embd": ("F16", table.data.view("<f2").reshape(table.rows, -1))}
        tensors |= {name: ("F32", source.vector(name)) for name in vectors(source.config)}
        tensors |= {name: (dtype, values[name].astype(kind)) for name in matrices(source.config)}
        for name, (written, array) in tensors.items():
            writer.tensor(f"{name}.weight", array.shape, written, array.nbytes)
        for name, (_, array) in tensors.items():
            writer.write(f"{name}.weight", [array])
    return path
