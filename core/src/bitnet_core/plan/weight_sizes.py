"""Compute the bytes that weights take on a device from their shapes: `upload` places the same arrays in this order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from weakref import WeakKeyDictionary

from bitnet_hal.device import DeviceInfo, MemoryKind, TransferMode, View, whole
from bitnet_hal.errors import UsageError
from bitnet_hal.kernels.types import DenseType
from bitnet_hal.rounding import ceil_div

from bitnet_core.formats.names import matrices, prediction_vectors
from bitnet_core.model.config import DeltaNet, ModelConfig
from bitnet_core.model.source import ModelSource
from bitnet_core.model.weights import padded
from bitnet_core.plan.prediction_weights import prediction_bytes
from bitnet_core.plan.shared_buffers import SharedBuffers
from bitnet_core.plan.view_limits import rows_per_part, view_limit

_WIDEST_BLOCK = 256
"""Columns per weight scale on the device if the file has one scale per row."""


@dataclass(frozen=True, slots=True)
class WeightSizes:
    """Bytes of weights: allocated on the device, and of host memory that it reads in place."""

    allocated: int
    wrapped: int


def weight_sizes(source: ModelSource, config: ModelConfig, info: DeviceInfo, positions: int) -> WeightSizes:
    """Return the bytes of the layers and tables of `config` on a device, with a rotary table for `positions` positions.

    A device that shares the host's memory is taken to wrap every matrix. Raises ModelError and UsageError if a matrix
    row or the rotary table exceeds what the device can bind.
    """
    return _Counted(source, config, info).all(positions)


def layer_bytes(config: ModelConfig, share: float = 1.0) -> int:
    """Return the bytes of the codes of all ternary matrices, which a decode step reads; of experts only a share."""
    return sum(
        int(rows * padded(columns) // 4 * (share if name.endswith("_exps") else 1.0))
        for name, (rows, columns) in matrices(config).items()
    )


def table_names(config: ModelConfig) -> tuple[str, ...]:
    """Return the names of the tables that layers need: the embedding before the first, the head after the last."""
    embedding = () if config.layers_before else ("token_embd",)
    if config.layers_after or (config.tied_head and embedding):
        return embedding
    return (*embedding, "token_embd" if config.tied_head else "output")


def table_type(source: ModelSource, name: str) -> tuple[DenseType, int]:
    """Return the type of a dense table and the bytes of a row. The table is read once, because that may convert it."""
    known = _table_types.setdefault(source, {})
    if name not in known:
        table = source.dense(name)
        known[name] = table.dtype, table.row_bytes
    return known[name]


_table_types: WeakKeyDictionary[ModelSource, dict[str, tuple[DenseType, int]]] = WeakKeyDictionary()
"""Types of tables and bytes of their rows, by source and name."""


def device_block(config: ModelConfig, block: int) -> int:
    """Return the columns per scale on the device; grouped activation scales need grouped weight scales."""
    return block or (_WIDEST_BLOCK if config.activation_group_size else 0)


def adjacent(info: DeviceInfo, width: int, rows: Sequence[int], blocks: Sequence[int]) -> bool:
    """Return True if matrices of one width fit in one binding, and the rows of the last are aligned for a separate
    view. blocks: columns per scale of each."""
    row = width // 4
    limit = view_limit(info)
    if len(set(blocks)) > 1 or 0 < limit < row * sum(rows):
        return False
    scales = 4 * (ceil_div(width, blocks[0]) if blocks[0] else 1)
    first = sum(rows[:-1])
    return not any(first * size % info.alignment for size in (row, scales))


def rotary_bytes(config: ModelConfig, info: DeviceInfo, positions: int) -> int:
    """Return the bytes of the rotary table. Raises UsageError if the device cannot bind it."""
    nbytes = 4 * config.head_dim * positions
    limit = view_limit(info)
    if 0 < limit < nbytes:
        fits = positions * limit // nbytes
        raise UsageError(
            f"the rotations of {positions:,} positions take {nbytes:,} bytes, and {info.request} "
            f"binds {limit:,} at most. Use a context of {fits:,} tokens or fewer"
        )
    return nbytes


@dataclass(frozen=True, slots=True)
class _Planned:
    """A buffer that is only counted."""

    nbytes: int
    kind: MemoryKind = MemoryKind.DEVICE


class _Counted:
    """Counts what _Uploader places, array by array."""

    def __init__(self, source: ModelSource, config: ModelConfig, info: DeviceInfo) -> None:
        self.source = source
        self.config = config
        self.info = info
        self.limit = view_limit(info)
        self.unified = info.transfer is TransferMode.UNIFIED
        self.allocated = 0
        self.wrapped = 0
        self._vectors = SharedBuffers(self._alloc, info.alignment)

    def all(self, positions: int) -> WeightSizes:
        config = self.config
        if self.unified:
            self._tables()
        for layer in range(config.n_layers):
            self._layer(layer)
        if not self.unified:
            self._tables()
        if config.prediction_head:
            self._prediction()
        self._vector(config.hidden)
        rotations = rotary_bytes(config, self.info, positions)
        self._vectors.view(rotations)
        if config.windows and not all(config.windows.layers):
            self._vectors.view(rotations)  # of layers without positions
        if config.hadamard:
            for width in sorted({columns for _, columns in matrices(config).values()} | {config.hidden}):
                self._vector(width)
        return WeightSizes(self.allocated, self.wrapped)

    def _alloc(self, nbytes: int) -> View:
        self.allocated += nbytes
        return whole(_Planned(nbytes))

    def _vector(self, values: int) -> None:
        self._vectors.view(4 * values)

    def _rows(self, counts: Sequence[int], row_bytes: int) -> list[int]:
        """Count matrices stacked by rows; returns the rows of every part."""
        nbytes = sum(counts) * row_bytes
        if self.unified:
            self.wrapped += nbytes
        else:
            self.allocated += nbytes
        parts: list[int] = []
        for rows in counts if self.unified else [sum(counts)]:
            step = rows_per_part(self.source.path, self.limit, row_bytes, rows)
            parts += [min(step, rows - first) for first in range(0, rows, step)]
        return parts

    def _tables(self) -> None:
        config = self.config
        for name in table_names(config):
            if config.ternary_tables:
                self._stacked([name], [(config.vocab, config.hidden)])
            else:
                self._rows([config.vocab], table_type(self.source, name)[1])

    def _layer(self, number: int) -> None:
        config = self.config
        prefix = f"blk.{config.layers_before + number}."
        linears = config.linears(number)
        is_delta = config.is_delta(number)
        inputs = ("attn_qkv",) if is_delta else ("attn_q", "attn_k", "attn_v")
        if config.projection_norms:
            for name in (*inputs, "ffn_gate", "ffn_up"):
                self._linear(prefix, linears, name)
                self._vector(linears[name][1])
        else:
            self._inputs(prefix, linears, inputs)
        for _ in range(2 if config.qk_norm and not is_delta else 0):
            self._vector(config.head_dim)
        self._vector(config.hidden)
        normed = config.projection_norms or config.sub_norms
        if normed:
            self._vector(config.q_width)
        self._linear(prefix, linears, "ssm_out" if is_delta else "attn_output")
        self._vector(config.hidden)
        if not config.projection_norms:
            self._feed_forward(prefix, linears, "ffn_gate", "ffn_up")
        if normed:
            self._vector(config.ffn)
        self._feed_forward(prefix, linears, "ffn_down")
        if config.delta and is_delta:
            self._delta(prefix, config.delta)
        if config.experts:
            self._rows([config.experts.count], self.source.dense(prefix + "ffn_gate_inp").row_bytes)

    def _feed_forward(self, prefix: str, linears: dict[str, tuple[int, int]], *names: str) -> None:
        if self.config.experts is None:
            self._linear(prefix, linears, *names)
            return
        for name in names:
            self._linear(prefix, linears, f"{name}_exps")

    def _prediction(self) -> None:
        """Count the prediction head, whose matrices may be converted: as if they were one."""
        if self.unified:
            self.wrapped += prediction_bytes(self.source)
        else:
            self.allocated += prediction_bytes(self.source)
        for width in prediction_vectors(self.config).values():
            self._vector(width)

    def _delta(self, prefix: str, net: DeltaNet) -> None:
        self._vector(net.channels * net.conv)
        self._rows([net.value_heads] * 2, self.source.dense(prefix + "ssm_alpha").row_bytes)
        for values in (net.value_heads, net.value_heads, net.value_dim):
            self._vector(values)

    def _inputs(self, prefix: str, linears: dict[str, tuple[int, int]], names: tuple[str, ...]) -> None:
        if not self.config.delta:
            self._linear(prefix, linears, *names)
            return
        every = (*names, "attn_gate")
        blocks = [self._block(prefix + name) for name in every]
        rows = [linears[name][0] for name in every]
        if not self.unified and adjacent(self.info, padded(self.config.hidden), rows, blocks):
            self._linear(prefix, linears, *every)
            return
        self._linear(prefix, linears, *names)
        self._linear(prefix, linears, "attn_gate")

    def _linear(self, prefix: str, linears: dict[str, tuple[int, int]], *names: str) -> None:
        self._stacked([prefix + name for name in names], [linears[name] for name in names])

    def _stacked(self, names: list[str], shapes: list[tuple[int, int]]) -> None:
        width = padded(shapes[0][1])
        blocks = zip((self._block(name) for name in names), (rows for rows, _ in shapes), strict=True)
        for block, group in groupby(blocks, lambda pair: pair[0]):
            for rows in self._rows([count for _, count in group], width // 4):
                self._vector(rows * (ceil_div(width, block) if block else 1))

    def _block(self, name: str) -> int:
        return device_block(self.config, self.source.scale_block(name))
