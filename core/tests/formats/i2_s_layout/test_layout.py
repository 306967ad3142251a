"""The layout of an I2_S file is decided by evidence."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import bitnet_core
import numpy as np
import pytest
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.perplexity import token_losses
from bitnet_core.errors import ModelError
from bitnet_core.formats.gguf.container import GGUFFile
from bitnet_core.formats.gguf.source import GGUFSource
from bitnet_core.formats.i2_s_layout.self_test import SELF_TEST_TEXT, decide_layout, is_noise
from bitnet_core.formats.i2_s_layout.statistics import Decision, Neurons, decide
from bitnet_core.formats.open import open_model
from bitnet_core.formats.ternary import i2_s
from bitnet_core.formats.ternary.codes import unpack
from bitnet_core.formats.ternary.i2_s import LAYOUTS
from bitnet_core.model.weights import DenseWeight
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.loading import Layout
from bitnet_core.tokenizer import load_tokenizer
from bitnet_hal.errors import UsageError
from bitnet_hal.reference.device import NumpyDevice

Make = Callable[..., Any]
HIDDEN, FFN = 128, 256
SHIPPED = Path(str(files("bitnet_core") / "data" / "stories.gguf"))


def encode(ternary: np.ndarray, layout: Layout) -> np.ndarray:
    """Encode W[rows, columns] in a layout, from its definition."""
    codes = (ternary + 1).astype(np.uint8)
    if layout == "C":
        parts = codes.reshape(len(codes) // 4, 4, -1).swapaxes(0, 1)
    else:
        parts = codes.reshape(-1, 4, 32 if layout == "A" else 16).swapaxes(0, 1)
    return (parts[0] << 6 | parts[1] << 4 | parts[2] << 2 | parts[3]).reshape(-1)


def trained(model: Any) -> Any:
    """Give a tiny model an embedding whose rows share a direction, as those of trained models do."""
    table = np.random.default_rng(7).standard_normal((64, HIDDEN)) + 1
    model.add("token_embd.weight", table.astype("<f2"), "F16")
    return model


def neurons_of_many_densities(make_tiny: Make, layout: Layout, dead: tuple[int, ...] = ()) -> tuple[Any, np.ndarray]:
    """Build a tiny model whose neurons differ in their shares of non-zero weights, as those of trained models do."""
    model = make_tiny()
    rng = np.random.default_rng(5)
    down = np.zeros((HIDDEN, FFN), np.int8)
    for i in range(2):
        share = np.full(FFN, 0.7) if dead else rng.uniform(0.35, 0.95, FFN)
        share[list(dead)] = 0
        up = np.where(rng.random((FFN, HIDDEN)) < share[:, None], rng.choice([-1, 1], (FFN, HIDDEN)), 0)
        down = np.where(rng.random((HIDDEN, FFN)) < share, rng.choice([-1, 1], (HIDDEN, FFN)), 0)
        for name, ternary in (("ffn_up", up), ("ffn_down", down)):
            model.tensors[f"blk.{i}.{name}.weight"][2][:-32] = encode(ternary, layout)
        if dead:
            norm = np.ones(FFN, "<f4")
            norm[list(dead)] = 1e-32
            model.add(f"blk.{i}.ffn_sub_norm.weight", norm, "F32")
    return model, down


@pytest.mark.parametrize("layout", ["A", "B", "C"])
@pytest.mark.parametrize(("dead", "basis"), [((), "neuron statistics"), ((3, 77, 200), "dead neurons")])
def test_statistics_tell_the_layouts_apart(
    tmp_path: Path, make_tiny: Make, layout: Layout, dead: tuple[int, ...], basis: str
) -> None:
    model, down = neurons_of_many_densities(make_tiny, layout, dead)
    source = open_model(model.write(tmp_path / "a.gguf"), strict=True)
    assert source.format == f"GGUF v3, I2_S layout {layout} ({basis})"
    assert [finding.code for finding in source.findings] == ["i2_s-layout"]
    assert (unpack(source.ternary("blk.1.ffn_down").codes, FFN).astype(np.int8) - 1 == down).all()
    decide_layout(source, lambda _: pytest.fail("measured without a doubt"))


@pytest.mark.parametrize("layout", ["A", "B", "C"])
def test_statistics_are_those_of_their_definition(layout: Layout) -> None:
    """Matrices larger than the sample, with counts that do not fit in a byte; some neurons have no zero at all."""
    rng = np.random.default_rng(11)
    hidden, ffn, sample = 1280, 384, 1024
    share = np.minimum(rng.uniform(0.5, 1.1, ffn), 1)
    up = np.where(rng.random((ffn, hidden)) < share[:, None], rng.choice([-1, 1], (ffn, hidden)), 0)
    down = np.where(rng.random((hidden, ffn)) < share, rng.choice([-1, 1], (hidden, ffn)), 0)
    rows, columns = (up[:, :sample] != 0).mean(axis=1), (down[:sample] != 0).mean(axis=0)
    sigma = np.corrcoef(rows, columns)[0, 1] * np.sqrt(ffn)

    decision = decide(LAYOUTS, [Neurons(hidden, ffn, encode(up, layout), encode(down, layout), None)])

    assert (decision.layout, decision.basis) == (layout, "neuron statistics")
    assert f"{layout} {sigma:.3g}" in decision.evidence


def shipped_in(layout: Layout, path: Path) -> Path:
    """Write the shipped model in a layout."""
    file = GGUFFile(SHIPPED)
    content = bytearray(SHIPPED.read_bytes())
    for tensor in file.tensors.values():
        if tensor.type.name == "I2_S":
            ternary = unpack(i2_s.decode(file.data(tensor), *tensor.shape).codes, tensor.shape[1]).astype(np.int8) - 1
            content[tensor.offset : tensor.offset + ternary.size // 4] = encode(ternary, layout).tobytes()
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("layout", ["A", "B", "C"])
def test_a_trained_model_is_told_apart_in_every_layout(tmp_path: Path, layout: Layout) -> None:
    """The model that ships with the package, written again in each layout."""
    source = open_model(shipped_in(layout, tmp_path / "a.gguf"))
    assert source.format == f"GGUF v3, I2_S layout {layout} (neuron statistics)"


@pytest.mark.parametrize("layout", ["A", "B", "C"])
def test_the_self_test_tells_a_trained_model_apart(tmp_path: Path, layout: Layout) -> None:
    """The same model, measured on a device as if its statistics did not decide."""
    source = open_model(shipped_in(layout, tmp_path / "a.gguf"))
    assert isinstance(source, GGUFSource)
    source.layout = Decision("A", "assumed", "")
    tokenizer = load_tokenizer(source.tokenizer)

    def nll(_: Layout) -> float:
        engine = Engine(source, NumpyDevice(), EngineOptions(context=64, max_sequences=1))
        losses = token_losses(engine, tokenizer.encode(SELF_TEST_TEXT, add_bos=tokenizer.add_bos))
        engine.close()
        return float(losses.mean())

    decide_layout(source, nll)
    assert source.format == f"GGUF v3, I2_S layout {layout} (self-test)"


def test_the_caller_overrides(tmp_path: Path, make_tiny: Make) -> None:
    model, _ = neurons_of_many_densities(make_tiny, "A")
    source = open_model(model.write(tmp_path / "a.gguf"), layout="B")
    assert source.format == "GGUF v3, I2_S layout B (given)"
    with pytest.raises(UsageError, match="unknown"):
        open_model(tmp_path / "a.gguf", layout="D")  # type: ignore[arg-type] # what a user may type
    decide_layout(source, lambda _: pytest.fail("measured without a doubt"))


@pytest.mark.parametrize(
    ("nll", "layout", "tried"),
    [
        ({"A": 2.0}, "A", "A"),  # ln 64 = 4.16; good at once
        ({"A": 9.0, "B": 2.0}, "B", "AB"),
        ({"A": 9.0, "B": float("nan"), "C": 1.5}, "C", "ABC"),
        ({"A": 9.0, "B": 3.5, "C": 5.0}, "B", "ABC"),  # not good, yet clearly the best
    ],
)
def test_the_self_test_settles_a_doubt(
    tmp_path: Path, make_tiny: Make, nll: dict[Layout, float], layout: Layout, tried: str
) -> None:
    source = open_model(trained(make_tiny()).write(tmp_path / "a.gguf"))
    assert "assumed" in source.format
    asked: list[str] = []

    def measure(kind: Layout) -> float:
        asked.append(kind)
        assert f"layout {kind}" in source.format  # the weights are those of the layout that is measured
        return nll[kind]

    decide_layout(source, measure)
    assert "".join(asked) == tried
    assert source.format == f"GGUF v3, I2_S layout {layout} (self-test)"
    assert "NLL" in source.findings[-1].message


@pytest.mark.parametrize("nll", [{"A": 9.0, "B": 8.0, "C": 10.0}, {"A": 4.0, "B": 3.9, "C": 4.1}])
def test_a_file_that_fails_every_layout_is_refused(tmp_path: Path, make_tiny: Make, nll: dict[Layout, float]) -> None:
    source = open_model(trained(make_tiny()).write(tmp_path / "a.gguf"))
    with pytest.raises(ModelError, match=r"none of the I2_S layouts.*A .*B .*C .*guessing gives 4\.16"):
        decide_layout(source, lambda kind: nll[kind])
    assert "layout A (assumed)" in source.format


def test_untrained_models_keep_the_assumed_layout(tmp_path: Path, make_tiny: Make) -> None:
    source = open_model(make_tiny().write(tmp_path / "a.gguf"))
    decide_layout(source, lambda _: pytest.fail("measured what no text can tell"))
    assert "layout A (assumed)" in source.format
    assert "untrained" in source.findings[-1].message


def test_noise_is_told_from_a_trained_table() -> None:
    rng = np.random.default_rng(0)
    for shape in ((32, 64), (64, 16), (3000, 256)):
        for values in (
            rng.standard_normal(shape),
            rng.uniform(-1, 1, shape),
            rng.choice([-1, 1], shape),
            np.zeros(shape),
        ):
            assert is_noise(DenseWeight("f16", *shape, values.astype("<f2").view(np.uint8)))
    assert not is_noise(open_model(SHIPPED).dense("token_embd"))


def test_a_trained_model_with_scrambled_weights_is_refused(tmp_path: Path) -> None:
    """The self-test rejects it on a device: it predicts text in no layout."""
    file = GGUFFile(SHIPPED)
    content = np.frombuffer(SHIPPED.read_bytes(), np.uint8).copy()
    rng = np.random.default_rng(0)
    for tensor in file.tensors.values():
        if tensor.type.name == "I2_S":
            content[tensor.offset : tensor.offset + tensor.nbytes - 32] = rng.permutation(file.data(tensor)[:-32])
    (tmp_path / "a.gguf").write_bytes(content.tobytes())
    with pytest.raises(ModelError, match="none of the I2_S layouts"):
        bitnet_core.load(tmp_path / "a.gguf", "numpy")
    with bitnet_core.load(tmp_path / "a.gguf", "numpy", layout="A") as loaded:
        assert "layout A (given)" in loaded.source.format


def test_models_without_i2_s_have_no_layout_to_decide(tmp_path: Path, make_tiny: Make) -> None:
    model = make_tiny()
    for name, (shape, dtype, _) in list(model.tensors.items()):
        if dtype == "I2_S":
            model.add(name, np.where(np.arange(shape[1]) % 2, np.ones(shape, "<f2"), 0).astype("<f2"), "F16")
    source = open_model(model.write(tmp_path / "a.gguf"))
    assert source.format == "GGUF v3, F16"
    with pytest.raises(UsageError, match="no I2_S tensors"):
        open_model(source.path, layout="A")
    decide_layout(source, lambda _: pytest.fail("measured without a doubt"))
    assert source.findings == ()
