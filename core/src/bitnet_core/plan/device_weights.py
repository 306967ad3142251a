"""Weights on a device, in the form that the plan binds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
from bitnet_hal.device import Buffer, Device, View, whole

from bitnet_core.model.config import ModelConfig
from bitnet_core.model.weights import padded

if TYPE_CHECKING:
    from bitnet_core.plan.prediction_weights import PredictionWeights


@dataclass(frozen=True, slots=True)
class LinearPart:
    """Consecutive rows of a ternary matrix that one launch serves; block 0 means one scale per row."""

    codes: View  # u8[outs, width / 4]
    scales: View  # f32[outs] or f32[outs, ceil(width / block)]
    outs: int
    y_first: int
    block: int


@dataclass(frozen=True, slots=True)
class Linear:
    """Ternary matrices that share their input, stacked by rows: y[outs] = W[outs, columns] x."""

    outs: int
    columns: int
    parts: tuple[LinearPart, ...]

    @property
    def width(self) -> int:
        """Columns padded to whole blocks."""
        return padded(self.columns)

    def stacked_at(self, first: int) -> Linear:
        """Return the matrix with its rows renumbered from `first` on, for a stack."""
        parts = tuple(replace(part, y_first=part.y_first + first) for part in self.parts)
        return Linear(self.outs, self.columns, parts)

    def split(self, first: int) -> tuple[Linear, Linear]:
        """Split a matrix in one part into views of its first rows and of the others."""
        whole = self.parts[0]
        row = self.width // 4
        scales = whole.scales.nbytes // self.outs

        def rows(start: int, count: int) -> Linear:
            codes = whole.codes.part(start * row, count * row)
            part = LinearPart(codes, whole.scales.part(start * scales, count * scales), count, 0, whole.block)
            return Linear(count, self.columns, (part,))

        return rows(0, first), rows(first, self.outs - first)


@dataclass(frozen=True, slots=True)
class Int8LmHead:
    """The int8 copy of an f16 head (kernels/lm_head_int8.py): codes i8[V, H], scale and error f32[V]."""

    codes: View
    scale: View
    error: View

    @property
    def nbytes(self) -> int:
        """Bytes of all three arrays; approx_logits reads all of them."""
        return self.codes.nbytes + self.scale.nbytes + self.error.nbytes


@dataclass(frozen=True, slots=True)
class DensePart:
    """Rows first..first + count of an embedding table or head."""

    table: View
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Dense:
    """An embedding table or head, split into parts that the device can bind; dtype indexes DENSE_TYPES."""

    dtype: int
    rows: int
    columns: int
    parts: tuple[DensePart, ...]


@dataclass(frozen=True, slots=True)
class DeltaWeights:
    """Parameters of a delta net other than its ternary matrices: conv f32[channels, taps], gates of 2 value_heads rows,
    rate and dt f32[value_heads], norm f32[value_dim]."""

    conv: View
    gates: Dense
    rate: View
    dt: View
    norm: View


@dataclass(frozen=True, slots=True)
class Projection:
    """A matrix whose input has its own norm (plan.projection_norms); its rows are part of a stack."""

    gamma: View
    matrix: Linear


def joined(projections: Sequence[Projection]) -> Linear | None:
    """Return the stack of the projections' matrices; None if there are none."""
    if not projections:
        return None
    matrices = [projection.matrix for projection in projections]
    parts = tuple(part for matrix in matrices for part in matrix.parts)
    return Linear(sum(matrix.outs for matrix in matrices), matrices[0].columns, parts)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One transformer layer on the device. In a delta net qkv is attn_qkv, and attn_output ssm_out.

    q_gain: factors of rotated queries (plan.norm_after_rope). qkv_projections, gate_up_projections: the matrices of qkv
    and gate_up, if each has a norm of its input. inputs: qkv and gate stacked by rows, if they are adjacent in memory.
    In a mixture of experts gate_up has a part for all gates and one for all ups, ffn_down one part; each holds the
    matrices of all experts, and its `outs` are those of one expert.
    """

    attn_norm: View
    qkv: Linear
    q_norm: View | None
    k_norm: View | None
    attn_sub_norm: View | None
    attn_output: Linear
    ffn_norm: View
    gate_up: Linear
    ffn_sub_norm: View | None
    ffn_down: Linear
    q_gain: View | None = None
    qkv_projections: tuple[Projection, ...] = ()
    gate_up_projections: tuple[Projection, ...] = ()
    gate: Linear | None = None
    inputs: Linear | None = None
    delta: DeltaWeights | None = None
    router: Dense | None = None


@dataclass(slots=True)
class DeviceWeights:
    """All weights of a model, or of a part of its layers, on one device. Keeps references to wrapped host memory."""

    config: ModelConfig
    layers: tuple[LayerWeights, ...]
    embedding: Dense | Linear | None  # only on the device with the first layer
    head: Dense | Linear | None  # only on the device with the last layer
    output_norm: View
    rope: View  # f32[positions, head_dim / 2, 2]
    positions: int
    nbytes: int  # allocated on the device, wrapped host memory not counted
    wrapped_bytes: int
    _buffers: list[Buffer] = field(repr=False)
    _hosts: list[npt.NDArray[Any]] = field(repr=False)
    lm_head_int8: Int8LmHead | None = None
    prediction: PredictionWeights | None = None
    unrotated: View | None = None  # the rotary table of layers without positions: cos 1, sin 0
    signs: dict[int, View] = field(default_factory=dict)  # signs f32[width] of the Hadamard rotation, by width

    @property
    def has_group_scales(self) -> bool:
        """True if a ternary matrix has scales of blocks of columns."""
        linears: list[Dense | Linear | None] = [self.embedding, self.head]
        for layer in self.layers:
            linears += [layer.qkv, layer.attn_output, layer.gate_up, layer.ffn_down]
            linears += [matrix for matrix in (layer.gate, layer.inputs) if matrix]
        return any(part.block for linear in linears if isinstance(linear, Linear) for part in linear.parts)

    @property
    def head_bytes(self) -> int:
        """Bytes of the head that are read to choose a token."""
        if self.lm_head_int8:
            return self.lm_head_int8.nbytes
        if isinstance(self.head, Dense):
            return sum(part.table.nbytes for part in self.head.parts)
        return sum(part.codes.nbytes + part.scales.nbytes for part in self.head.parts) if self.head else 0

    def alloc(self, device: Device, nbytes: int) -> View:
        """Allocate memory that is freed together with the weights."""
        buffer = device.alloc(nbytes)
        self._buffers.append(buffer)
        self.nbytes += nbytes
        return whole(buffer).part(0, nbytes)

    def free(self, device: Device) -> None:
        """Free all buffers."""
        for buffer in self._buffers:
            device.free(buffer)
        self._buffers.clear()
        self._hosts.clear()
