"""Models of the MiniCPM kind (BitCPM4): their multipliers, LongRoPE, and their rejected files."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from bitnet_core.engine.engine import Engine
from bitnet_core.errors import ModelError
from bitnet_core.formats.convert.convert import convert
from bitnet_core.formats.gguf.writer import GGUFWriter
from bitnet_core.formats.open import open_model
from bitnet_core.formats.ternary import tq2_0
from bitnet_core.formats.ternary.codes import pack
from bitnet_core.model.weights import TernaryWeight
from bitnet_core.options.engine import EngineOptions
from bitnet_hal.errors import UsageError
from bitnet_hal.reference.device import NumpyDevice

Array = npt.NDArray[np.float64]
HIDDEN, FFN, HEADS, KV_HEADS, DIM, VOCAB, LAYERS, CONTEXT = 256, 512, 4, 2, 64, 320, 3, 64
EMBEDDING, RESIDUAL, LOGIT, EPS = 12.0, 1.4 / LAYERS**0.5, 8.0, 1e-5
SHAPES = {
    "attn_q": (HEADS * DIM, HIDDEN),
    "attn_k": (KV_HEADS * DIM, HIDDEN),
    "attn_v": (KV_HEADS * DIM, HIDDEN),
    "attn_output": (HIDDEN, HEADS * DIM),
    "ffn_gate": (FFN, HIDDEN),
    "ffn_up": (FFN, HIDDEN),
    "ffn_down": (HIDDEN, FFN),
}
KEYS: dict[str, Any] = {
    "general.architecture": "minicpm",
    "minicpm.context_length": CONTEXT,
    "minicpm.embedding_length": HIDDEN,
    "minicpm.block_count": LAYERS,
    "minicpm.feed_forward_length": FFN,
    "minicpm.attention.head_count": HEADS,
    "minicpm.attention.head_count_kv": KV_HEADS,
    "minicpm.attention.layer_norm_rms_epsilon": EPS,
    "minicpm.rope.freq_base": 10000.0,
    "minicpm.vocab_size": VOCAB,
    "minicpm.embedding_scale": EMBEDDING,
    "minicpm.residual_scale": RESIDUAL,
    "minicpm.logit_scale": LOGIT,
}
LONG = {"minicpm.rope.scaling.type": "longrope", "minicpm.rope.scaling.original_context_length": 32}


class Made:
    """A model of random weights, as arrays and as a file. Its residual stream is small, so that eps counts."""

    def __init__(self, tied: bool) -> None:
        draw = np.random.default_rng(7)
        self.tied = tied
        self.norms = {
            f"blk.{i}.{name}": draw.uniform(0.5, 1.5, HIDDEN).astype(np.float32)
            for i in range(LAYERS)
            for name in ("attn_norm", "ffn_norm")
        } | {"output_norm": draw.uniform(0.5, 1.5, HIDDEN).astype(np.float32)}
        self.tables = {"token_embd": (1e-3 * draw.standard_normal((VOCAB, HIDDEN))).astype("<f2")}
        if not tied:
            self.tables["output"] = draw.standard_normal((VOCAB, HIDDEN)).astype("<f2")
        self.factors = {
            "rope_factors_short": draw.uniform(1, 2, DIM // 2).astype(np.float32),
            "rope_factors_long": draw.uniform(2, 8, DIM // 2).astype(np.float32),
        }
        self.matrices = {}
        for name, (rows, columns) in {f"blk.{i}.{n}": s for i in range(LAYERS) for n, s in SHAPES.items()}.items():
            scales = draw.uniform(0.5, 1.5, (rows, columns // 256)).astype(np.float16).astype(np.float32)
            scales = (scales * columns**-0.5).astype(np.float16).astype(np.float32)
            codes = pack(draw.integers(0, 3, (rows, columns), np.uint8))
            self.matrices[name] = TernaryWeight(rows, columns, codes, scales, "block", 256)

    def write(self, path: Path, long: bool = False, **changes: Any) -> Path:
        """Write the file. changes: keys of `minicpm.`, with _ for . if the key has one; None removes a key."""
        vectors = self.norms | (self.factors if long else {})
        tensors: list[tuple[str, tuple[int, ...], str, Any]] = [
            (name, values.shape, "F32", values) for name, values in vectors.items()
        ]
        tensors += [(name, values.shape, "F16", values) for name, values in self.tables.items()]
        tensors += [(name, (w.rows, w.columns), "TQ2_0", tq2_0.encode(w)) for name, w in self.matrices.items()]
        keys = KEYS | (LONG if long else {}) | {f"minicpm.{key}": value for key, value in changes.items()}
        with GGUFWriter(path) as writer:
            for key, value in keys.items():
                if value is not None:
                    writer.metadata(key, value)
            for name, shape, dtype, values in tensors:
                writer.tensor(f"{name}.weight", shape, dtype, values.nbytes)
            for name, _, _, values in tensors:
                writer.write(f"{name}.weight", [values])
        return path

    def logits(
        self, tokens: list[int], model: ModuleType, block: int, factors: npt.NDArray[np.float32] | None
    ) -> Array:
        """Return f64[T, VOCAB] by the formula as published, without folding. block: as in float_model."""

        def product(x: Array, name: str) -> Array:
            found: Array = (model.rounded(x, block) if block else x) @ model.values(self.matrices[name]).T
            return found

        def turned(x: Array) -> Array:
            pairs = x.reshape(len(x), -1, DIM // 2, 2)
            values = 10000.0 ** (-np.arange(0, DIM, 2) / DIM) / (1 if factors is None else factors)
            angles = (np.arange(len(x))[:, None] * values)[:, None]
            first, second = pairs[..., 0], pairs[..., 1]
            cos, sin = np.cos(angles), np.sin(angles)
            return np.stack([first * cos - second * sin, second * cos + first * sin], -1).reshape(len(x), -1, DIM)

        x = EMBEDDING * self.tables["token_embd"][tokens].astype(np.float64)
        for i in range(LAYERS):
            h = model.normed(x, self.norms[f"blk.{i}.attn_norm"], EPS)
            q, k, v = (product(h, f"blk.{i}.attn_{n}") for n in "qkv")
            mixed = model.attention(turned(q), turned(k), v.reshape(len(x), -1, DIM))
            x = x + RESIDUAL * product(mixed, f"blk.{i}.attn_output")
            h = model.normed(x, self.norms[f"blk.{i}.ffn_norm"], EPS)
            gate, up = product(h, f"blk.{i}.ffn_gate"), product(h, f"blk.{i}.ffn_up")
            x = x + RESIDUAL * product(gate / (1 + np.exp(-gate)) * up, f"blk.{i}.ffn_down")
        head = self.tables["token_embd" if self.tied else "output"].astype(np.float64)
        found: Array = model.normed(x, self.norms["output_norm"], EPS) @ head.T / LOGIT
        return found


def distance(found: Any, wanted: Array) -> float:
    """Return the distance of logits as a share of their size."""
    return float(np.sqrt(((found - wanted) ** 2).mean() / (wanted**2).mean()))


TOKENS = np.random.default_rng(3).integers(0, VOCAB, 40).tolist()


@pytest.mark.parametrize("tied", [False, True])
def test_logits_are_those_of_the_formula(
    tmp_path: Path, float_model: ModuleType, float64_model: Any, tied: bool
) -> None:
    made = Made(tied)
    source = open_model(made.write(tmp_path / "m.gguf"))
    wanted = made.logits(TOKENS, float_model, 0, None)
    assert distance(float64_model(source).logits(TOKENS), wanted) <= 1e-5
    engine = Engine(source, NumpyDevice(), EngineOptions("f32", max_sequences=1))
    found = engine.logits(TOKENS)
    engine.close()
    same = made.logits(TOKENS, float_model, 32, None)
    assert distance(found, same) <= 1e-2
    assert (found.argmax(axis=1) == same.argmax(axis=1)).mean() >= 0.95


@pytest.mark.parametrize(("context", "name"), [(32, "rope_factors_short"), (48, "rope_factors_long")])
def test_long_contexts_have_factors_of_their_own(
    tmp_path: Path, float_model: ModuleType, context: int, name: str
) -> None:
    made = Made(True)
    source = open_model(made.write(tmp_path / "m.gguf", long=True))
    engine = Engine(source, NumpyDevice(), EngineOptions("f32", context=context, max_sequences=1))
    found = engine.logits(TOKENS[:30])
    engine.close()
    same = made.logits(TOKENS[:30], float_model, 32, made.factors[name])
    assert distance(found, same) <= 1e-2
    assert distance(found, made.logits(TOKENS[:30], float_model, 32, None)) > 5e-2


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("embedding_scale", None, "has no key minicpm.embedding_scale, and programs disagree"),
        ("residual_scale", None, "has no key minicpm.residual_scale"),
        ("logit_scale", None, "has no key minicpm.logit_scale"),
        ("logit_scale", 0.0, "minicpm.logit_scale' is 0.0, not a positive number"),
        ("embedding_scale", -12.0, "minicpm.embedding_scale' is -12.0, not a positive number"),
        ("residual_scale", 1e9, "is 1e+09, which is not a valid multiplier"),
        ("rope.scaling.type", "longrope", "needs the tensors rope_factors_long and rope_factors_short"),
    ],
)
def test_what_is_refused(tmp_path: Path, key: str, value: Any, words: str) -> None:
    with pytest.raises(ModelError) as caught:
        open_model(Made(True).write(tmp_path / "m.gguf", **{key: value}))
    assert words in str(caught.value)


def test_it_is_not_written_in_other_forms(tmp_path: Path) -> None:
    source = open_model(Made(True).write(tmp_path / "m.gguf"))
    with pytest.raises(UsageError, match="run but not converted"):
        convert(source, tmp_path / "n.gguf", "q2_0")
    source.close()
