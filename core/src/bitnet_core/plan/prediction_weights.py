"""The weights of a multi-token prediction head on a device: dense matrices, norms, and tables if it has its own.

No kernel adds a dense product to its output, so the two matrices whose results are added to the residual are extended
by the identity: W x + r = [W | I] [x | r].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import View
from bitnet_hal.kernels.catalogue import DENSE_TYPES
from bitnet_hal.kernels.types import DENSE_BLOCKS, DenseType

from bitnet_core.errors import ModelError
from bitnet_core.formats import dense
from bitnet_core.formats.names import PREDICTION, prediction_matrices, prediction_options, prediction_vectors
from bitnet_core.model.config import ModelConfig
from bitnet_core.model.source import ModelSource
from bitnet_core.model.weights import DenseWeight
from bitnet_core.plan.device_weights import Dense, DensePart
from bitnet_core.plan.weight_memory import WeightMemory

_STACKED: tuple[DenseType, ...] = ("f32", "f16", "bf16", "q8_0")
"""Types in which an identity matrix can be represented; others are converted to f16."""


@dataclass(frozen=True, slots=True)
class PredictionWeights:
    """A prediction head: an attention layer after `pair`, the matrix that multiplies [norm(embedding) | norm(hidden)].

    output, down: attn_output and ffn_down, extended by the identity. embedding, head: its own tables, not rotated.
    """

    embedding_norm: View
    hidden_norm: View
    pair: Dense
    attn_norm: View
    qkv: Dense
    gate: Dense
    q_norm: View
    k_norm: View
    output: Dense
    ffn_norm: View
    gate_up: Dense
    down: Dense
    norm: View | None
    embedding: Dense | None
    head: Dense | None


def prediction_bytes(source: ModelSource) -> int:
    """Return the bytes of all matrices of a prediction head on the device; 0 if the model has none."""
    config = source.config
    if not config.prediction_head:
        return 0
    names = [*prediction_matrices(config), *(name for name in prediction_options(config) if source.has(name))]
    matrices = [_readable(source.dense(name)) for name in names if not name.endswith("norm")]
    identities = 2 * config.hidden * DenseWeight(matrices[0].dtype, 1, config.hidden, matrices[0].data[:0]).row_bytes
    return sum(matrix.rows * matrix.row_bytes for matrix in matrices) + identities


def upload_prediction(source: ModelSource, memory: WeightMemory) -> PredictionWeights:
    """Upload the prediction head of a model. Raises ModelError if a tensor does not have its shape."""
    return _Uploader(source, memory).all()


class _Uploader:
    def __init__(self, source: ModelSource, memory: WeightMemory) -> None:
        self.source = source
        self.memory = memory
        self.config: ModelConfig = source.config
        self.matrices = prediction_matrices(source.config)
        self.vectors = prediction_vectors(source.config)

    def all(self) -> PredictionWeights:
        return PredictionWeights(
            embedding_norm=self._norm("enorm"),
            hidden_norm=self._norm("hnorm"),
            pair=self._stacked("eh_proj"),
            attn_norm=self._norm("attn_norm"),
            qkv=self._stacked("attn_q", "attn_k", "attn_v"),
            gate=self._stacked("attn_gate"),
            q_norm=self._norm("attn_q_norm"),
            k_norm=self._norm("attn_k_norm"),
            output=self._extended("attn_output"),
            ffn_norm=self._norm("ffn_norm"),
            gate_up=self._stacked("ffn_gate", "ffn_up"),
            down=self._extended("ffn_down"),
            norm=self._norm("shared_head_norm") if self._has("shared_head_norm") else None,
            embedding=self._stacked("embed_tokens") if self._has("embed_tokens") else None,
            head=self._stacked("shared_head_head") if self._has("shared_head_head") else None,
        )

    def _has(self, name: str) -> bool:
        return self.source.has(PREDICTION + name)

    def _norm(self, name: str) -> View:
        values = self.source.vector(PREDICTION + name)
        size = self.vectors.get(PREDICTION + name, self.config.hidden)
        if values.shape != (size,):
            raise ModelError(f"{self.source.path}: {PREDICTION}{name} has shape {list(values.shape)}, not [{size}]")
        return self.memory.vector(values)

    def _matrix(self, name: str) -> DenseWeight:
        weight = _readable(self.source.dense(PREDICTION + name))
        shape = self.matrices.get(PREDICTION + name, (self.config.vocab, self.config.hidden))
        if (weight.rows, weight.columns) != shape:
            raise ModelError(
                f"{self.source.path}: {PREDICTION}{name} is {weight.rows} x {weight.columns}, "
                f"not {shape[0]} x {shape[1]}"
            )
        return weight

    def _stacked(self, *names: str) -> Dense:
        """Upload matrices that share their input, stacked by rows."""
        weights = [self._matrix(name) for name in names]
        if len({weight.dtype for weight in weights}) > 1:
            weights = [_as_f16(weight) for weight in weights]
        return self._placed(weights[0].dtype, weights[0].columns, [weight.data for weight in weights])

    def _extended(self, name: str) -> Dense:
        """Upload [W | I]: a matrix extended by the identity."""
        weight = self._matrix(name)
        both = np.concatenate([weight.data, identity(weight.dtype, weight.rows)], axis=1)
        return self._placed(weight.dtype, weight.columns + weight.rows, [both])

    def _placed(self, dtype: DenseType, columns: int, data: Sequence[npt.NDArray[np.uint8]]) -> Dense:
        parts = tuple(DensePart(view, first, count) for first, count, view in self.memory.rows(data))
        return Dense(DENSE_TYPES.index(dtype), sum(map(len, data)), columns, parts)


def _readable(weight: DenseWeight) -> DenseWeight:
    """Return the weight in a type of _STACKED, with whole blocks in each row."""
    whole = weight.rows % DENSE_BLOCKS[weight.dtype][0] == 0
    return weight if weight.dtype in _STACKED and whole else _as_f16(weight)


def _as_f16(weight: DenseWeight) -> DenseWeight:
    halves = dense.decode(weight.data, weight.dtype, weight.columns).astype("<f2")
    return DenseWeight("f16", weight.rows, weight.columns, halves.view(np.uint8))


def identity(dtype: DenseType, size: int) -> npt.NDArray[np.uint8]:
    """Return the rows u8[size, row_bytes] of the identity matrix in a dense type."""
    if dtype == "f32":
        return np.eye(size, dtype="<f4").view(np.uint8)
    if dtype == "bf16":
        return (np.eye(size, dtype="<f4").view("<u4") >> 16).astype("<u2").view(np.uint8)
    if dtype == "f16":
        return np.eye(size, dtype="<f2").view(np.uint8)
    elements, nbytes = DENSE_BLOCKS[dtype]
    blocks = np.zeros((size, size // elements, nbytes), np.uint8)
    blocks[:, :, :2] = np.ones(1, "<f2").view(np.uint8)
    row = np.arange(size)
    blocks[row, row // elements, 2 + row % elements] = 1
    return blocks.reshape(size, -1)
