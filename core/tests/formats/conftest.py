"""Tiny models of every kind, written with the product's own writer; helpers of this folder are importable by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitnet_core.formats.gguf.types import BY_NAME
from bitnet_core.formats.gguf.writer import GGUFWriter

sys.path.insert(0, str(Path(__file__).parent))

GOLDEN = Path(__file__).parent / "golden.npz"


@pytest.fixture(scope="session")
def golden() -> Mapping[str, Any]:
    """Load vectors made by the public tools; the key README describes them."""
    with np.load(GOLDEN) as archive:
        return {name: archive[name] for name in archive.files}


@dataclass
class TinyModel:
    """A GGUF file in pieces: keys, and tensors as (shape, type name, bytes)."""

    keys: dict[str, Any]
    tensors: dict[str, tuple[tuple[int, ...], str, np.ndarray]] = field(default_factory=dict)

    def add(self, name: str, array: np.ndarray, dtype: str, shape: tuple[int, ...] | None = None) -> None:
        data = np.frombuffer(bytearray(array.tobytes()), np.uint8)
        self.tensors[name] = (shape or array.shape, dtype, data)

    def write(self, path: Path) -> Path:
        with GGUFWriter(path) as writer:
            for key, value in self.keys.items():
                writer.metadata(key, value)
            for name, (shape, dtype, _) in self.tensors.items():
                writer.tensor(name, shape, dtype, BY_NAME[dtype].nbytes(shape) or 0)
            for name, (_, _, data) in self.tensors.items():
                writer.write(name, [data])
        return path


def i2_s_bytes(values: np.ndarray, scale: float) -> np.ndarray:
    """Encode in layout A, element by element from its definition."""
    stream = (values + 1).astype(np.uint8).reshape(-1, 4, 32)
    codes = stream[:, 0] << 6 | stream[:, 1] << 4 | stream[:, 2] << 2 | stream[:, 3]
    return np.concatenate([codes.reshape(-1), np.array([scale], "<f4").view(np.uint8), np.zeros(28, np.uint8)])


def tiny_model(
    arch: str = "bitnet-b1.58", layers: int = 2, seed: int = 0, sub_norms: bool = True, hidden: int = 128
) -> TinyModel:
    """Build a model: hidden 128, ffn 256, heads of 64 (one for keys and values), 64 tokens, I2_S layout A."""
    rng = np.random.default_rng(seed)
    keys: dict[str, Any] = {
        "general.architecture": arch,
        "general.name": "tiny",
        f"{arch}.context_length": 64,
        f"{arch}.embedding_length": hidden,
        f"{arch}.block_count": layers,
        f"{arch}.feed_forward_length": 256,
        f"{arch}.attention.head_count": hidden // 64,
        f"{arch}.attention.head_count_kv": 1,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": [f"t{i}" for i in range(64)],
        "tokenizer.ggml.token_type": np.ones(64, np.int32),
        "tokenizer.ggml.merges": ["t 1", "t 2"],
    }
    model = TinyModel(keys)
    model.add("token_embd.weight", rng.standard_normal((64, hidden)).astype("<f2"), "F16")
    model.add("output_norm.weight", np.ones(hidden, "<f4"), "F32")
    widths = {"attn_norm": hidden, "ffn_norm": hidden}
    if sub_norms:
        widths |= {"attn_sub_norm": hidden, "ffn_sub_norm": 256}
    shapes = {
        "attn_q": (hidden, hidden),
        "attn_k": (64, hidden),
        "attn_v": (64, hidden),
        "attn_output": (hidden, hidden),
        "ffn_gate": (256, hidden),
        "ffn_up": (256, hidden),
        "ffn_down": (hidden, 256),
    }
    for i in range(layers):
        for name, width in widths.items():
            model.add(f"blk.{i}.{name}.weight", rng.uniform(0.5, 1.5, width).astype("<f4"), "F32")
        for name, shape in shapes.items():
            values = rng.choice([-1, 0, 1], shape, p=[0.35, 0.3, 0.35])
            data = i2_s_bytes(values, rng.uniform(0.01, 0.1))
            model.add(f"blk.{i}.{name}.weight", data, "I2_S", shape)
    return model


@pytest.fixture
def make_tiny() -> Callable[..., TinyModel]:
    """Builds a tiny model in memory; change it, then write it."""
    return tiny_model
