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
from bitnet_hal.errors import UsageError

from bitnet_core.errors import ModelError
from bitnet_core.formats.names import floats, signs_name, tables, ternaries, vectors
from bitnet_core.formats.synthetic_shapes import SHAPES
from bitnet_core.model.source import Finding, TensorInfo
from bitnet_core.model.weights import BLOCK, DenseWeight, TernaryWeight, padded

_RANDOM_BYTES = 1 << 20  # repeated until a tensor is full; only the variety of the values matters
_RANDOM_HALVES = (1 << 19) - 1  # a prime, so that no two rows of a head are equal and tie


class SyntheticSource:
    """A source of random ternary weights for one of SHAPES, the same every time. Raises UsageError for another name."""

    path = Path("synthetic")
    findings: Sequence[Finding] = ()
    metadata: Mapping[str, Any] = {}

    def __init__(self, shape: str) -> None:
        if shape not in SHAPES:
            raise UsageError(f"there is no synthetic shape '{shape}'; choose one of {', '.join(SHAPES)}")
        self.config = config = SHAPES[shape]
        self.format = f"random ternary weights, {'ternary' if config.ternary_tables else 'f16'} embedding"
        self._norms, self._tables, self._ternaries = vectors(config), tables(config), ternaries(config)
        self._floats = floats(config)
        if config.hadamard:
            self._norms |= {signs_name(columns): columns for _, columns in self._ternaries.values()}

    @property
    def tensors(self) -> Sequence[TensorInfo]:
        """Every tensor but the norms."""
        found = [
            TensorInfo(name, "ternary", (rows, columns), rows * padded(columns) // 4)
            for name, (rows, columns) in self._ternaries.items()
        ]
        dense = {n: shape for n, shape in (self._tables | self._floats).items() if n not in self._ternaries}
        return found + [TensorInfo(name, "f16", shape, shape[0] * shape[1] * 2) for name, shape in dense.items()]

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
        """Return codes 0, 1 and 2 in equal shares, with one scale, or one per 128 columns if activation scales are per
        group."""
        rows, columns = self._ternaries.get(name, (0, 0))
        if not rows:
            raise ModelError(f"the synthetic model has no ternary matrix '{name}'")
        width = padded(columns)
        codes = np.resize(_random_codes(), rows * width // 4).reshape(rows, width // 4)
        scale = np.float32(1 / np.sqrt(columns))
        if not self.config.activation_group_size:
            return TernaryWeight(rows, columns, codes, scale.reshape(1))
        scales = scale * np.resize(_random_factors(), (rows, width // BLOCK))
        return TernaryWeight(rows, columns, codes, scales, "block", BLOCK)

    def stored_ternary(self, name: str) -> TernaryWeight:
        """Return `ternary`: there is no file."""
        return self.ternary(name)

    def scale_block(self, name: str) -> int:
        """Return the columns that share a scale, the same in every matrix."""
        return BLOCK if self.config.activation_group_size else 0

    def dense(self, name: str) -> DenseWeight:
        """Return the embedding or a dense matrix of a delta net: normal values with standard deviation 0.02."""
        rows, columns = (self._tables | self._floats).get(name, (0, 0))
        if not rows or name in self._ternaries:
            raise ModelError(f"the synthetic model has no table '{name}' of floats")
        data = np.resize(_random_halves(), rows * columns).view(np.uint8).reshape(rows, columns * 2)
        return DenseWeight("f16", rows, columns, data)

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """Return norm weights of 1; the rates of delta nets are -1."""
        width = self._norms.get(name, 0)
        if not width:
            raise ModelError(f"the synthetic model has no vector '{name}'")
        return np.full(width, -1 if name.endswith("ssm_a") else 1, np.float32)

    def has(self, name: str) -> bool:
        """Return whether the shape has this tensor."""
        return any(name in known for known in (self._tables, self._ternaries, self._floats, self._norms))

    def sha256(self) -> str:
        """Return the hash of the configuration, which determines the weights."""
        return hashlib.sha256(repr(self.config).encode()).hexdigest()

    def release(self) -> None:
        """Do nothing: no file is mapped."""

    def close(self) -> None:
        """Do nothing: no file is open."""


@cache
def _random_codes() -> npt.NDArray[np.uint8]:
    valid = np.array([a << 6 | b << 4 | c << 2 | d for a, b, c, d in product(range(3), repeat=4)], np.uint8)
    return valid[np.random.default_rng(1).integers(0, len(valid), _RANDOM_BYTES)]


@cache
def _random_factors() -> npt.NDArray[np.float32]:
    return np.random.default_rng(3).uniform(0.5, 1.5, 4093).astype(np.float32)


@cache
def _random_halves() -> npt.NDArray[np.float16]:
    return (np.random.default_rng(2).standard_normal(_RANDOM_HALVES) * 0.02).astype(np.float16)


def _byte_letters() -> list[str]:
    """Return the letters of the bytes 0..255 in a byte-level vocabulary (as in GPT-2).

    Printable Latin-1 letters represent themselves, the other bytes are letters from U+0100 on.
    """
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]
