"""The interface of all model files to the rest of core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from bitnet_core.model.config import ModelConfig
from bitnet_core.model.weights import DenseWeight, TernaryWeight


@dataclass(frozen=True, slots=True)
class Finding:
    """A reader's finding about a model. Warnings become errors in strict mode (exit code 8)."""

    severity: Literal["info", "warning"]
    code: str  # stable name, such as "missing-pre-tokenizer"
    message: str


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as stored, for `bitnet inspect`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


class ModelSource(Protocol):
    """An opened model file or folder.

    Weights are read on request. Names are GGUF's without ".weight" ("blk.0.attn_q", "token_embd", "output_norm",
    "output"), whatever the container calls them.
    """

    @property
    def path(self) -> Path: ...

    @property
    def config(self) -> ModelConfig: ...

    @property
    def format(self) -> str:
        """Container and ternary encoding, for display: "GGUF v3, I2_S layout A"."""

    @property
    def findings(self) -> Sequence[Finding]: ...

    @property
    def tensors(self) -> Sequence[TensorInfo]: ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Key-values of the file (GGUF) or config.json, for `inspect`; large arrays are summarised."""

    @property
    def tokenizer(self) -> Mapping[str, Any]:
        """The input of the tokenizer loader: {"kind": "gguf", GGUF's tokenizer.* keys in full} or {"kind": "hf",
        "tokenizer_json": str (if there is one), "tokenizer_config": dict, "generation_config": dict}."""

    def ternary(self, name: str) -> TernaryWeight:
        """Return a linear layer, such as "blk.0.attn_q". Raises ModelError if it is absent."""

    def stored_ternary(self, name: str) -> TernaryWeight:
        """Return `ternary`, but with blocks of Q2_0 as the file has them (`TernaryWeight.stored`) if it does.

        Illegal codes are then not found, and only blocks with a scale of 0 count as blocks of zeros.
        """

    def scale_block(self, name: str) -> int:
        """Return the columns that share a scale in a linear layer, 0 for one scale per row. It is determined from some
        rows of the matrix, so `ternary` may differ if the other rows do."""

    def dense(self, name: str) -> DenseWeight:
        """Return "token_embd" or "output"."""

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """Return a norm weight, such as "blk.0.attn_norm", as f32[n]."""

    def has(self, name: str) -> bool: ...

    def sha256(self) -> str:
        """Return the hex digest of the model's bytes (of all weight files in name order); computed once."""

    def release(self) -> None:
        """Allow the system to drop the file's pages that were read; arrays already returned stay valid."""

    def close(self) -> None: ...
