"""Tiny random models from a seed: the same weights for our engine and for the script that makes reference logits."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from bitnet_core.formats.ternary.codes import pack
from bitnet_core.model.config import ModelConfig
from bitnet_core.model.weights import DenseWeight, TernaryWeight, padded

Array = npt.NDArray[np.float32]

BITNET = ModelConfig(
    arch="bitnet-b1.58",
    name="tiny bitnet",
    n_layers=2,
    hidden=64,
    ffn=96,
    n_heads=4,
    n_kv_heads=2,
    head_dim=16,
    vocab=64,
    context=256,
    norm_eps=1e-5,
    rope_theta=500000.0,
    activation="relu2",
    sub_norms=True,
    tied_head=True,
)
CONFIGS = {
    "offline": BITNET,
    "online": BITNET,
    "silu": replace(BITNET, arch="bitnet", activation="silu", rope_theta=10000.0),
    "llama": replace(
        BITNET,
        arch="llama",
        activation="silu",
        sub_norms=False,
        tied_head=False,
        rope_interleaved=True,
        rope_theta=10000.0,
        norm_eps=1e-6,
    ),
}
LENGTHS = (1, 5, 33, 130)
PROMPT: list[int] = np.random.default_rng(130).integers(0, BITNET.vocab, max(LENGTHS)).tolist()
"""Reference prompts are the first LENGTHS tokens of this; logits do not depend on later tokens."""


@dataclass(frozen=True)
class TinyModel:
    """A model as float masters; `ternary` of them is what both sides multiply with."""

    config: ModelConfig
    seed: int = 0

    def normal(self, name: str, *shape: int) -> Array:
        """Standard normal values that depend on the seed and the name alone."""
        rng = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
        return rng.standard_normal(shape, np.float32)

    def master(self, name: str) -> Array:
        """f32[N, K] of a linear layer, rows in the order of Hugging Face checkpoints."""
        rows, columns = self.config.linears(0)[name.rpartition(".")[2]]
        spread = np.float32(1 + zlib.crc32(name.encode()) % 7)
        return self.normal(name, rows, columns) * spread / np.float32(columns**0.5)

    def signs(self, name: str) -> tuple[npt.NDArray[np.int8], np.float32]:
        """(i8[N, K] of -1, 0, 1, scale): absmean quantisation of the master (BitNet b1.58, Ma et al. 2024)."""
        master = self.master(name)
        scale = np.float32(1) / np.maximum(np.abs(master).mean(dtype=np.float32), np.float32(1e-5))
        return np.clip(np.rint(master * scale), -1, 1).astype(np.int8), np.float32(1) / scale

    def norm(self, name: str, size: int) -> Array:
        """Norm weights around 1."""
        return np.float32(1) + np.float32(0.2) * self.normal(name, size)

    def table(self, name: str) -> Array:
        """f32[V, H]"""
        return self.normal(name, self.config.vocab, self.config.hidden)


class TinySource:
    """A TinyModel as the engine reads it."""

    path = Path("tiny")
    format = "tiny random model"
    findings: tuple[Any, ...] = ()
    tensors: tuple[Any, ...] = ()

    def __init__(self, config: ModelConfig, seed: int = 0, scale_kind: str = "tensor", block: int = 0) -> None:
        self.config = config
        self.metadata: dict[str, Any] = {}
        self.tokenizer: dict[str, Any] = {}
        self.model = TinyModel(config, seed)
        self.permuted = config.rope_interleaved  # rows of q and k are in the order that interleaved pairs want
        self.scale_kind, self.block = scale_kind, block

    def ternary(self, name: str) -> TernaryWeight:
        config = self.config
        signs, scale = self.model.signs(name)
        rows, columns = signs.shape
        if self.permuted and name.endswith(("attn_q", "attn_k")):
            halves = signs.reshape(-1, 2, config.head_dim // 2, columns)
            signs = halves.swapaxes(1, 2).reshape(rows, columns)
        codes = np.ones((rows, padded(columns)), np.uint8)
        codes[:, :columns] = signs + 1
        shape = {"tensor": (1,), "row": (rows,), "block": (rows, -(-columns // (self.block or 1)))}[self.scale_kind]
        scales = np.full(shape, scale, np.float32)
        return TernaryWeight(rows, columns, pack(codes), scales, self.scale_kind, self.block)  # type: ignore[arg-type]

    def stored_ternary(self, name: str) -> TernaryWeight:
        return self.ternary(name)

    def scale_block(self, name: str) -> int:
        return self.block

    def dense(self, name: str) -> DenseWeight:
        table = self.model.table(name)
        return DenseWeight("f32", *table.shape, table.view(np.uint8))

    def vector(self, name: str) -> Array:
        config = self.config
        sizes = {"attn_sub_norm": config.q_width, "ffn_sub_norm": config.ffn}
        return self.model.norm(name, sizes.get(name.rpartition(".")[2], config.hidden))

    def has(self, name: str) -> bool:
        return name != "rope_freqs"

    def sha256(self) -> str:
        return "0" * 64

    def release(self) -> None:
        pass

    def close(self) -> None:
        pass
