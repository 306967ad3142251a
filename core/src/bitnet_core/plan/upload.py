"""Weights of a model file, placed in device memory in the form that the plan binds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import Buffer, Device, TransferMode, View, whole
from bitnet_hal.errors import GpuError, UsageError
from bitnet_hal.kernels.catalogue import DENSE_TYPES
from bitnet_hal.rounding import ceil_div

from bitnet_core.errors import ModelError
from bitnet_core.formats import dense
from bitnet_core.formats.names import matrices, signs_name
from bitnet_core.formats.threads import reader_pool
from bitnet_core.model.config import DeltaNet, ModelConfig
from bitnet_core.model.rope import factors_name, rope_table
from bitnet_core.model.source import ModelSource
from bitnet_core.model.weights import DenseWeight, TernaryWeight, padded
from bitnet_core.plan.shared_buffers import SharedBuffers
from bitnet_core.plan.weights import DeltaWeights, Dense, DensePart, DeviceWeights, LayerWeights, Linear, LinearPart

UPLOAD_CHUNK = 32 << 20
"""Bytes handed to the device at once, so that pages of a mapped file need not all stay in memory."""

LAYERS_AHEAD = 2
"""Layers that are in memory while they are read, the one that is placed with them."""

FORGOTTEN = 256 << 20
"""Bytes after whose upload the file's pages are let go of: those that are needed again have to be found again."""

_WIDEST_BLOCK = 256
"""Columns of a weight scale where a whole row has the same one."""

Progress = Callable[[str, int, int], None]
"""Called with (what is under way, units done, units in all): ("load", bytes, bytes) here."""


def weight_bytes(source: ModelSource) -> int:
    """Bytes of all matrices of a model as the device will hold them (norms and scales, far below 1 %, left out)."""
    return _linear_bytes(source.config) + _table_bytes(source)


def _table_bytes(source: ModelSource) -> int:
    config, names = source.config, _table_names(source.config)
    if config.ternary_tables:
        return len(names) * config.vocab * padded(config.hidden) // 4
    return sum(source.dense(name).data.nbytes for name in names)


def _linear_bytes(config: ModelConfig) -> int:
    return sum(rows * padded(columns) // 4 for rows, columns in matrices(config).values())


def _table_names(config: ModelConfig) -> tuple[str, ...]:
    return ("token_embd",) if config.tied_head else ("token_embd", "output")


def upload(source: ModelSource, device: Device, positions: int, progress: Progress | None = None) -> DeviceWeights:
    """Place a model on a device, with a rotary table for `positions` positions.

    Raises ModelError where a tensor does not have the shape that the configuration promises, and whatever the device
    raises; then everything that was placed so far is given back.
    """
    uploader = _Uploader(source, device, progress)
    try:
        return uploader.all(positions)
    except BaseException:
        for buffer in uploader.buffers:
            with suppress(GpuError):  # a lost device; what led here is the error that counts
                device.free(buffer)
        raise


class _Uploader:
    def __init__(self, source: ModelSource, device: Device, progress: Progress | None) -> None:
        self.source, self.device, self.progress = source, device, progress
        self.config = source.config
        self.buffers: list[Buffer] = []
        self.hosts: list[npt.NDArray[Any]] = []
        self.allocated = self.wrapped = self.done = 0
        self.total = self.forgotten = 0
        limits = [limit for limit in (device.info.max_binding, device.info.max_allocation) if limit]
        self.limit = min(limits, default=0)
        self.unified = device.info.transfer is TransferMode.UNIFIED
        self.vectors = SharedBuffers(self._buffer, device.info.alignment)
        self.being_read: dict[str, Future[TernaryWeight]] = {}

    def all(self, positions: int) -> DeviceWeights:
        config = self.config
        self.total = weight_bytes(self.source)
        with reader_pool() as readers:
            if config.ternary_tables:
                self._read_ahead(_table_names(config), readers)
            tables = self._tables() if self.unified else {}  # while little else takes the host's memory
            layers = tuple(self._read_once(self._layer(i, readers)) for i in range(config.n_layers))
            tables = tables or self._tables()
        self._forget()
        return DeviceWeights(
            config=config,
            layers=layers,
            embedding=tables["token_embd"],
            head=tables.get("output", tables["token_embd"]),
            output_norm=self._norm("output_norm", config.hidden),
            rope=self._rope(positions),
            positions=positions,
            nbytes=self.allocated,
            wrapped_bytes=self.wrapped,
            _buffers=self.buffers,
            _hosts=self.hosts,
            signs=self._signs(),
        )

    def _signs(self) -> dict[int, View]:
        """Of the inputs of all matrices, where they are rotated."""
        if not self.config.hadamard:
            return {}
        widths = {columns for _, columns in matrices(self.config).values()} | {self.config.hidden}
        return {width: self._norm(signs_name(width), width) for width in sorted(widths)}

    def _read_once(self, layer: LayerWeights) -> LayerWeights:
        if self.done - self.forgotten >= FORGOTTEN:
            self._forget()
        return layer

    def _forget(self) -> None:
        """Where all weights are copies, the file's pages should not count as this process's memory beside them."""
        if all(_own_memory(host) for host in self.hosts):
            self.source.release()
        self.forgotten = self.done

    def _rope(self, positions: int) -> View:
        table = rope_table(self.config, positions, self._rope_factors(positions))
        if 0 < self.limit < table.nbytes:
            fits = positions * self.limit // table.nbytes
            raise UsageError(
                f"the rotations of {positions:,} positions take {table.nbytes:,} bytes, and {self.device.info.request} "
                f"binds {self.limit:,} at most. Use a context of {fits:,} tokens or fewer"
            )
        return self._vector(table)

    def _rope_factors(self, positions: int) -> npt.NDArray[np.float32] | None:
        name = factors_name(self.config, positions)
        if not self.source.has(name):
            return None
        factors, size = self.source.vector(name), self.config.rotary_pairs
        if factors.shape != (size,) or not ((factors > 0) & np.isfinite(factors)).all():
            raise ModelError(f"{self.source.path}: {name} must be {size} positive numbers")
        return factors

    def _read_ahead(self, names: Iterable[str], readers: Executor) -> None:
        """Where memory is shared with the host, it counts more than time."""
        for name in names:
            if name not in self.being_read and not self.unified:
                self.being_read[name] = readers.submit(self.source.ternary, name)

    def _layer(self, number: int, readers: Executor) -> LayerWeights:
        """readers: they go on with the next layer."""
        config, prefix = self.config, f"blk.{number}."
        is_delta, sub_norms = config.is_delta(number), config.sub_norms
        linears = config.linears(number)
        inputs = ("attn_qkv",) if is_delta else ("attn_q", "attn_k", "attn_v")
        normed = config.qk_norm and not is_delta
        for layer in range(number, min(number + LAYERS_AHEAD, config.n_layers)):
            self._read_ahead((f"blk.{layer}.{linear}" for linear in config.linears(layer)), readers)
        qkv, gate, both = self._inputs(prefix, linears, inputs)
        return LayerWeights(
            attn_norm=self._norm(prefix + "attn_norm", config.hidden),
            qkv=qkv,
            q_norm=self._norm(prefix + "attn_q_norm", config.head_dim) if normed else None,
            k_norm=self._norm(prefix + "attn_k_norm", config.head_dim) if normed else None,
            attn_sub_norm=self._norm(prefix + "attn_sub_norm", config.q_width) if sub_norms else None,
            attn_output=self._linear(prefix, linears, "ssm_out" if is_delta else "attn_output"),
            ffn_norm=self._norm(prefix + "ffn_norm", config.hidden),
            gate_up=self._linear(prefix, linears, "ffn_gate", "ffn_up"),
            ffn_sub_norm=self._norm(prefix + "ffn_sub_norm", config.ffn) if sub_norms else None,
            ffn_down=self._linear(prefix, linears, "ffn_down"),
            gate=gate,
            inputs=both,
            delta=self._delta(prefix, config.delta) if config.delta and is_delta else None,
        )

    def _delta(self, prefix: str, net: DeltaNet) -> DeltaWeights:
        """What a delta net has beside its ternary matrices."""
        conv = self._floats(prefix + "ssm_conv1d", (net.channels, net.conv))
        return DeltaWeights(
            conv=self._vector(dense.decode(conv.data, conv.dtype, conv.columns)),
            gates=self._gates(prefix, (net.value_heads, self.config.hidden)),
            rate=self._norm(prefix + "ssm_a", net.value_heads),
            dt=self._norm(prefix + "ssm_dt", net.value_heads),
            norm=self._norm(prefix + "ssm_norm", net.value_dim),
        )

    def _gates(self, prefix: str, shape: tuple[int, int]) -> Dense:
        """ssm_alpha and ssm_beta, one below the other."""
        alpha, beta = (self._floats(prefix + name, shape) for name in ("ssm_alpha", "ssm_beta"))
        if alpha.dtype != beta.dtype:
            raise ModelError(
                f"{self.source.path}: {prefix}ssm_alpha and ssm_beta are of different types: not supported"
            )
        return self._dense([alpha, beta])

    def _floats(self, name: str, shape: tuple[int, int]) -> DenseWeight:
        weight = self.source.dense(name)
        self._check_shape(name, (weight.rows, weight.columns), shape)
        return weight

    def _inputs(
        self, prefix: str, shapes: Mapping[str, tuple[int, int]], names: Sequence[str]
    ) -> tuple[Linear, Linear | None, Linear | None]:
        """Queries, keys and values; the gate beside them, if there is one; and both as one, where that is possible."""
        if not self.config.delta:
            return self._linear(prefix, shapes, *names), None, None
        weights = [self._ternary(prefix + name, shapes[name]) for name in (*names, "attn_gate")]
        first = sum(weight.rows for weight in weights[:-1])
        if not self.unified and self._neighbours(weights, first):
            both = self._stacked(weights)
            return *both.split(first), both
        return self._stacked(weights[:-1]), self._stacked(weights[-1:]), None

    def _neighbours(self, weights: Sequence[TernaryWeight], first: int) -> bool:
        """Whether matrices of one kind fit in one binding, and the rows from `first` on in a view of their own."""
        blocks, row = {self._block(weight) for weight in weights}, weights[0].width // 4
        if len(blocks) > 1 or 0 < self.limit < row * sum(weight.rows for weight in weights):
            return False
        block = blocks.pop()
        scales = 4 * (ceil_div(weights[0].width, block) if block else 1)
        return not any(first * size % self.device.info.alignment for size in (row, scales))

    def _linear(self, prefix: str, shapes: Mapping[str, tuple[int, int]], *names: str) -> Linear:
        """The named matrices of a layer, which share their input."""
        return self._stacked([self._ternary(prefix + name, shapes[name]) for name in names])

    def _stacked(self, weights: Sequence[TernaryWeight]) -> Linear:
        """Stack matrices; neighbours whose scales are of one kind share a launch where they are copied."""
        parts: list[LinearPart] = []
        first = 0
        for block, group in groupby(weights, self._block):
            same = list(group)
            scales = np.concatenate([_row_scales(weight, block) for weight in same])
            for start, count, view in self._rows([weight.codes for weight in same]):
                part = self._vector(scales[start : start + count])
                parts.append(LinearPart(view, part, count, first + start, block))
            first += len(scales)
        return Linear(first, weights[0].columns, tuple(parts))

    def _block(self, weight: TernaryWeight) -> int:
        """Columns of a scale on the device: activations in blocks come with weight scales in blocks alone."""
        return weight.block or (_WIDEST_BLOCK if self.config.activation_group_size else 0)

    def _ternary(self, name: str, shape: tuple[int, int]) -> TernaryWeight:
        weight = self.being_read.pop(name).result() if name in self.being_read else self.source.ternary(name)
        self._check_shape(name, (weight.rows, weight.columns), shape)
        return weight

    def _check_shape(self, name: str, shape: tuple[int, int], expected: tuple[int, int]) -> None:
        if shape != expected:
            raise ModelError(
                f"{self.source.path}: {name} is {shape[0]} x {shape[1]}, not {expected[0]} x {expected[1]}"
            )

    def _tables(self) -> dict[str, Dense | Linear]:
        return {name: self._table(name) for name in _table_names(self.config)}

    def _table(self, name: str) -> Dense | Linear:
        """token_embd or output, in parts that the device can bind."""
        shape = self.config.vocab, self.config.hidden
        if self.config.ternary_tables:
            return self._stacked([self._ternary(name, shape)])
        weight = self._floats(name, shape)
        return self._dense([weight])

    def _dense(self, weights: Sequence[DenseWeight]) -> Dense:
        """Matrices of one type, stacked."""
        data, first = [weight.data for weight in weights], weights[0]
        parts = tuple(DensePart(view, start, count) for start, count, view in self._rows(data))
        return Dense(DENSE_TYPES.index(first.dtype), sum(map(len, data)), first.columns, parts)

    def _norm(self, name: str, size: int) -> View:
        values = self.source.vector(name)
        if values.shape != (size,):
            raise ModelError(f"{self.source.path}: {name} has shape {list(values.shape)}, not [{size}]")
        return self._vector(values)

    def _vector(self, values: npt.NDArray[np.float32]) -> View:
        flat = np.ascontiguousarray(values, np.float32).reshape(-1)
        view = self.vectors.view(flat.nbytes)
        self.allocated += flat.nbytes
        self.device.upload(view, flat.data.cast("B"))
        return view

    def _rows(self, arrays: Sequence[npt.NDArray[np.uint8]]) -> list[tuple[int, int, View]]:
        """Place u8[rows, row_bytes] arrays: (first row, rows, view) of every part, without copies where possible."""
        arrays = [np.ascontiguousarray(array) for array in arrays]
        placed = self._wrapped(arrays) if self.unified else None
        return self._copied(arrays) if placed is None else placed

    def _rows_per_part(self, row_bytes: int, rows: int) -> int:
        if not self.limit:
            return rows
        if row_bytes > self.limit:
            raise ModelError(f"{self.source.path}: a matrix row of {row_bytes} bytes exceeds what the device can bind")
        return min(rows, self.limit // row_bytes)

    def _wrapped(self, arrays: Sequence[npt.NDArray[np.uint8]]) -> list[tuple[int, int, View]] | None:
        placed: list[tuple[int, int, View]] = []
        first = 0
        for array in arrays:
            step = self._rows_per_part(array.shape[1], len(array))
            for start in range(0, len(array), step):
                piece = array[start : start + step]
                buffer = self.device.wrap(piece.reshape(-1).data)
                if buffer is None:
                    for _, _, view in placed:
                        self.device.free(view.buffer)
                    return None
                placed.append((first + start, len(piece), View(buffer, 0, piece.nbytes)))
            first += len(array)
        self.buffers += [view.buffer for _, _, view in placed]
        self.hosts += arrays
        for array in arrays:
            self.wrapped += array.nbytes
            self._advance(array.nbytes)
        return placed

    def _copied(self, arrays: Sequence[npt.NDArray[np.uint8]]) -> list[tuple[int, int, View]]:
        row_bytes = arrays[0].shape[1]
        rows = sum(len(array) for array in arrays)
        step = self._rows_per_part(row_bytes, rows)
        parts = [(first, min(step, rows - first)) for first in range(0, rows, step)]
        placed = [(first, count, self._alloc(count * row_bytes)) for first, count in parts]
        chunk = max(1, UPLOAD_CHUNK // row_bytes)
        start = 0  # row of the stack where `array` begins
        for array in arrays:
            for first, count, view in placed:
                row, end = max(first, start), min(first + count, start + len(array))
                while row < end:
                    piece = array[row - start : min(row + chunk, end) - start]
                    self.device.upload(view.part((row - first) * row_bytes, piece.nbytes), piece.reshape(-1).data)
                    row += len(piece)
                    self._advance(piece.nbytes)
            start += len(array)
        return placed

    def _alloc(self, nbytes: int) -> View:
        self.allocated += nbytes
        return self._buffer(nbytes)

    def _buffer(self, nbytes: int) -> View:
        buffer = self.device.alloc(nbytes)
        self.buffers.append(buffer)
        return whole(buffer).part(0, nbytes)

    def _advance(self, nbytes: int) -> None:
        self.done += nbytes
        if self.progress:
            self.progress("load", min(self.done, self.total), self.total)


def _own_memory(array: npt.NDArray[Any]) -> bool:
    """Whether numpy made the memory, which a mapped file's is not."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.base is None


def _row_scales(weight: TernaryWeight, block: int) -> npt.NDArray[np.float32]:
    """f32[rows] where block is 0, else f32[rows, ceil(width / block)] with zeros for blocks that are all padding."""
    rows = np.broadcast_to(weight.scales.reshape(-1), (weight.rows,)) if weight.scale_kind != "block" else weight.scales
    if not block:
        return rows.astype(np.float32)
    scales = np.zeros((weight.rows, ceil_div(weight.width, block)), np.float32)
    if weight.scale_kind == "block":
        scales[:, : rows.shape[1]] = rows
    else:
        scales[:] = rows[:, None]
    return scales
