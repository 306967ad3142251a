"""A model source with random weights, to measure speed at real shapes without a file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError, UsageError
from bitnet_core.formats.source import Finding, TensorInfo
from bitnet_core.model.config import ModelConfig
from bitnet_core.model.weights import DenseWeight, TernaryWeight, padded

SHAPES = {
    "2b4t": ModelConfig(
        arch="bitnet-b1.58",
        name="synthetic 2B-4T",
        n_layers=30,
        hidden=2560,
        ffn=6912,
        n_heads=20,
        n_kv_heads=5,
        head_dim=128,
        vocab=128256,
        context=4096,
        norm_eps=1e-5,
        rope_theta=500000.0,
        activation="relu2",
        sub_norms=True,
        tied_head=True,
    ),
    "tiny": ModelConfig(
        arch="bitnet-b1.58",
        name="synthetic tiny",
        n_layers=2,
        hidden=256,
        ffn=640,
        n_heads=4,
        n_kv_heads=2,
        head_dim=64,
        vocab=1024,
        context=2048,
        norm_eps=1e-5,
        rope_theta=500000.0,
        activation="relu2",
        sub_norms=True,
        tied_head=True,
    ),
}
"""Shapes by name: Microsoft's BitNet b1.58 2B-4T, and one for quick trials."""

_RANDOM_BYTES = 1 << 20  # repeated until a tensor is full: the values do not matter, their variety does


class SyntheticSource:
    """Random ternary weights of one of SHAPES, the same every time; UsageError for another name."""

    path = Path("synthetic")
    format = "random ternary weights, f16 embedding"
    findings: Sequence[Finding] = ()
    metadata: Mapping[str, Any] = {}

    def __init__(self, shape: str) -> None:
        if shape not in SHAPES:
            raise UsageError(f"there is no synthetic shape '{shape}'; there are {', '.join(SHAPES)}")
        self.config = config = SHAPES[shape]
        self._norms = {
            "attn_norm": config.hidden,
            "attn_sub_norm": config.q_width,
            "ffn_norm": config.hidden,
            "ffn_sub_norm": config.ffn,
            "output_norm": config.hidden,
        }

    @property
    def tensors(self) -> Sequence[TensorInfo]:
        """The linear layers and the embedding."""
        config = self.config
        linears = [
            TensorInfo(f"blk.{layer}.{name}", "ternary", (rows, columns), rows * padded(columns) // 4)
            for layer in range(config.n_layers)
            for name, (rows, columns) in config.linears().items()
        ]
        return [
            *linears,
            TensorInfo("token_embd", "f16", (config.vocab, config.hidden), config.vocab * config.hidden * 2),
        ]

    @property
    def tokenizer(self) -> Mapping[str, Any]:
        """A byte-level vocabulary: the 256 bytes, an end token, one merge, and fillers that no text encodes to."""
        vocab = self.config.vocab
        letters = [*_byte_letters(), "<|end|>", "th"]
        return {
            "kind": "gguf",
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "llama-bpe",
            "tokenizer.ggml.tokens": letters + [f"<|filler{number}|>" for number in range(vocab - len(letters))],
            "tokenizer.ggml.token_type": [1] * 256 + [3] + [1] * (vocab - 257),
            "tokenizer.ggml.merges": ["t h"],
            "tokenizer.ggml.eos_token_id": 256,
        }

    def ternary(self, name: str) -> TernaryWeight:
        """Codes 0, 1 and 2 equally often, one scale."""
        rows, columns = self.config.linears().get(name.rpartition(".")[2], (0, 0))
        if not rows:
            raise ModelError(f"the synthetic model has no linear layer '{name}'")
        width = padded(columns)
        codes = np.resize(_random_codes(), rows * width // 4).reshape(rows, width // 4)
        return TernaryWeight(rows, columns, codes, np.array([1 / np.sqrt(columns)], np.float32))

    def dense(self, name: str) -> DenseWeight:
        """The embedding, standard deviation 0.02."""
        if name != "token_embd":
            raise ModelError(f"the synthetic model has no table '{name}'")
        rows, columns = self.config.vocab, self.config.hidden
        data = np.resize(_random_halves(), rows * columns).view(np.uint8).reshape(rows, columns * 2)
        return DenseWeight("f16", rows, columns, data)

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """Norm weights of 1."""
        width = self._norms.get(name.rpartition(".")[2], 0)
        if not width:
            raise ModelError(f"the synthetic model has no vector '{name}'")
        return np.ones(width, np.float32)

    def has(self, name: str) -> bool:
        """Whether the shape has this tensor; there is no head of its own."""
        kind = name.rpartition(".")[2]
        return name == "token_embd" or kind in self.config.linears() or kind in self._norms

    def sha256(self) -> str:
        """Of the description that the weights follow from."""
        return hashlib.sha256(repr(self.config).encode()).hexdigest()

    def release(self) -> None:
        """Nothing is mapped."""

    def close(self) -> None:
        """Nothing is open."""


@cache
def _random_codes() -> npt.NDArray[np.uint8]:
    valid = np.array([a << 6 | b << 4 | c << 2 | d for a, b, c, d in product(range(3), repeat=4)], np.uint8)
    return valid[np.random.default_rng(1).integers(0, len(valid), _RANDOM_BYTES)]


@cache
def _random_halves() -> npt.NDArray[np.float16]:
    return (np.random.default_rng(2).standard_normal(_RANDOM_BYTES // 2) * 0.02).astype(np.float16)


def _byte_letters() -> list[str]:
    """The letters that stand for the bytes 0..255 in a byte-level vocabulary (as in GPT-2): printable Latin-1 for
    itself, the others from U+0100 on."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]
