"""Load the weights of a model file into device memory, in the form that the plan binds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import replace
from itertools import groupby

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import Device, View
from bitnet_hal.errors import GpuError, OutOfMemoryError
from bitnet_hal.kernels.catalogue import DENSE_TYPES
from bitnet_hal.rounding import ceil_div

from bitnet_core.errors import ModelError
from bitnet_core.formats import dense
from bitnet_core.formats.names import INPUT_NORM, matrices, signs_name
from bitnet_core.formats.threads import reader_pool
from bitnet_core.model.config import DeltaNet, ModelConfig
from bitnet_core.model.rope import factors_name, rope_table
from bitnet_core.model.source import ModelSource
from bitnet_core.model.weights import DenseWeight, TernaryWeight, padded
from bitnet_core.plan.device_weights import (
    DeltaWeights,
    Dense,
    DensePart,
    DeviceWeights,
    LayerWeights,
    Linear,
    LinearPart,
    Projection,
    joined,
)
from bitnet_core.plan.norm_after_rope import query_gain
from bitnet_core.plan.prediction_weights import prediction_bytes, upload_prediction
from bitnet_core.plan.weight_memory import WeightMemory
from bitnet_core.plan.weight_sizes import adjacent, device_block, layer_bytes, rotary_bytes, table_names
from bitnet_core.progress import Progress
from bitnet_core.units import size

LAYERS_AHEAD = 2
"""Number of layers that are in host memory at once, including the one being uploaded."""

RELEASE_BYTES = 256 << 20
"""Release the pages of the mapped file after uploading this many bytes; pages needed again are re-read."""

_SUB_NORM_OF = {"attn_output": "attn_sub_norm", "ffn_down": "ffn_sub_norm"}


def weight_bytes(source: ModelSource, config: ModelConfig | None = None) -> int:
    """Return the bytes of the matrices and tables of a model, or of the layers of `config`, on a device; scales and
    vectors are not counted (weight_sizes counts them)."""
    config = config or source.config
    return layer_bytes(config) + _table_bytes(source, config)


def _table_bytes(source: ModelSource, config: ModelConfig) -> int:
    names = table_names(config)
    if config.ternary_tables:
        return len(names) * config.vocab * padded(config.hidden) // 4
    return sum(source.dense(name).data.nbytes for name in names)


def upload(
    source: ModelSource,
    device: Device,
    positions: int,
    progress: Progress | None = None,
    config: ModelConfig | None = None,
    *,
    prediction: bool = False,
) -> DeviceWeights:
    """Upload a model, or only the layers of `config`, to a device, with a rotary table for `positions` positions.
    prediction: also its prediction head.

    Raises ModelError if a tensor does not have the shape that the configuration states, and GpuErrors of the device;
    all buffers are then freed.
    """
    uploader = _Uploader(source, device, progress, config or source.config)
    try:
        return uploader.all(positions, prediction=prediction)
    except BaseException as error:
        if isinstance(error, OutOfMemoryError):
            error.hint = (
                f"The weights take {size(uploader.total)}, whatever the context: use a smaller model, another device, "
                "or close other programs that use this one"
            )
        for buffer in uploader.memory.buffers:
            with suppress(GpuError):  # of a lost device: the first error is reported
                device.free(buffer)
        raise


class _Uploader:
    def __init__(self, source: ModelSource, device: Device, progress: Progress | None, config: ModelConfig) -> None:
        self.source = source
        self.device = device
        self.progress = progress
        self.config = config
        self.memory = WeightMemory(device, source.path, self._advance)
        self.done = 0
        self.total = 0
        self.released = 0
        self.being_read: dict[str, Future[TernaryWeight]] = {}

    def all(self, positions: int, *, prediction: bool) -> DeviceWeights:
        config = self.config
        self.total = weight_bytes(self.source, config) + (prediction_bytes(self.source) if prediction else 0)
        with reader_pool() as readers:
            if config.ternary_tables:
                self._read_ahead(table_names(config), readers)
            tables = self._tables() if self.memory.unified else {}  # first, while host memory is free
            layers: list[LayerWeights] = []
            for number in range(config.n_layers):
                layers.append(self._layer(number, readers))
                if self.done - self.released >= RELEASE_BYTES:
                    self._release_pages()
            tables = tables or self._tables()
        head = upload_prediction(self.source, self.memory) if prediction else None
        self._release_pages()
        output_norm = self._norm("output_norm", config.hidden)
        rope = self._rope(positions)
        unrotated = self._unrotated(positions)
        signs = self._signs()
        return DeviceWeights(
            config=config,
            layers=tuple(layers),
            embedding=None if config.layers_before else tables["token_embd"],
            head=None if config.layers_after else tables["token_embd" if config.tied_head else "output"],
            output_norm=output_norm,
            rope=rope,
            positions=positions,
            nbytes=self.memory.allocated,
            wrapped_bytes=self.memory.wrapped,
            _buffers=self.memory.buffers,
            _hosts=self.memory.hosts,
            unrotated=unrotated,
            signs=signs,
            prediction=head,
        )

    def _signs(self) -> dict[int, View]:
        """Upload the sign vectors of rotated weights, by width; {} if weights are not rotated."""
        if not self.config.hadamard:
            return {}
        widths = {columns for _, columns in matrices(self.config).values()} | {self.config.hidden}
        return {width: self._norm(signs_name(width), width) for width in sorted(widths)}

    def _release_pages(self) -> None:
        """Release the pages of the mapped file, unless weights on the device view them."""
        if not self.memory.views_file:
            self.source.release()
        self.released = self.done

    def _rope(self, positions: int) -> View:
        rotary_bytes(self.config, self.device.info, positions)  # raises if it cannot be bound
        return self.memory.vector(rope_table(self.config, positions, self._rope_factors(positions)))

    def _unrotated(self, positions: int) -> View | None:
        """Upload the rotary table of layers without positions; None if there are none."""
        if self.config.windows is None or all(self.config.windows.layers):
            return None
        return self.memory.vector(np.tile(np.array([1, 0], np.float32), positions * self.config.head_dim // 2))

    def _rope_factors(self, positions: int) -> npt.NDArray[np.float32] | None:
        name = factors_name(self.config, positions)
        if not self.source.has(name):
            return None
        factors = self.source.vector(name)
        size = self.config.rotary_pairs
        if factors.shape != (size,) or not ((factors > 0) & np.isfinite(factors)).all():
            raise ModelError(f"{self.source.path}: {name} must be {size} positive numbers")
        return factors

    def _read_ahead(self, names: Iterable[str], readers: Executor) -> None:
        """Start reading matrices in threads; not on devices that share the host's memory, to save it."""
        for name in names:
            if name not in self.being_read and not self.memory.unified:
                self.being_read[name] = readers.submit(self.source.ternary, name)

    def _layer(self, number: int, readers: Executor) -> LayerWeights:
        """Upload a layer while `readers` read the next ones."""
        config = self.config
        before = config.layers_before
        prefix = f"blk.{before + number}."
        is_delta = config.is_delta(number)
        linears = config.linears(number)
        inputs = ("attn_qkv",) if is_delta else ("attn_q", "attn_k", "attn_v")
        for layer in range(number, min(number + LAYERS_AHEAD, config.n_layers)):
            self._read_ahead((f"blk.{before + layer}.{linear}" for linear in config.linears(layer)), readers)
        qkv_projections = self._projections(prefix, linears, *inputs)
        gate_up_projections = self._projections(prefix, linears, "ffn_gate", "ffn_up")
        qkv, gate, both = joined(qkv_projections), None, None
        if qkv is None:
            qkv, gate, both = self._inputs(prefix, linears, inputs)
        q_norm, k_norm, q_gain = (None, None, None) if is_delta else self._head_norms(prefix)
        return LayerWeights(
            attn_norm=self._norm(prefix + "attn_norm", config.hidden),
            qkv=qkv,
            q_norm=q_norm,
            k_norm=k_norm,
            attn_sub_norm=self._sub_norm(prefix, "attn_output", config.q_width),
            attn_output=self._linear(prefix, linears, "ssm_out" if is_delta else "attn_output"),
            ffn_norm=self._norm(prefix + "ffn_norm", config.hidden),
            gate_up=joined(gate_up_projections) or self._feed_forward(prefix, linears, "ffn_gate", "ffn_up"),
            ffn_sub_norm=self._sub_norm(prefix, "ffn_down", config.ffn),
            ffn_down=self._feed_forward(prefix, linears, "ffn_down"),
            gate=gate,
            q_gain=q_gain,
            qkv_projections=qkv_projections,
            gate_up_projections=gate_up_projections,
            inputs=both,
            delta=self._delta(prefix, config.delta) if config.delta and is_delta else None,
            router=self._router(prefix) if config.experts else None,
        )

    def _sub_norm(self, prefix: str, matrix: str, size: int) -> View | None:
        """Upload the norm of the input of attn_output or ffn_down; None if there is none."""
        if self.config.projection_norms:
            return self._norm(prefix + matrix + INPUT_NORM, size)
        return self._norm(prefix + _SUB_NORM_OF[matrix], size) if self.config.sub_norms else None

    def _projections(self, prefix: str, shapes: Mapping[str, tuple[int, int]], *names: str) -> tuple[Projection, ...]:
        """Upload matrices that each norm the input they share, as rows of one stack; () if they do not."""
        found: list[Projection] = []
        first = 0
        for name in names if self.config.projection_norms else ():
            matrix = self._linear(prefix, shapes, name).moved(first)
            found.append(Projection(self._norm(prefix + name + INPUT_NORM, matrix.columns), matrix))
            first += matrix.outs
        return tuple(found)

    def _head_norms(self, prefix: str) -> tuple[View | None, View | None, View | None]:
        """Upload the norm weights of query and key heads, and the factors of rotated queries if the norms follow
        RoPE."""
        config = self.config
        if not config.qk_norm:
            return None, None, None
        q_gamma, k_gamma = (self._vector(prefix + name, config.head_dim) for name in ("attn_q_norm", "attn_k_norm"))
        if not config.qk_norm_after_rope:
            return self.memory.vector(q_gamma), self.memory.vector(k_gamma), None
        ones = self.memory.vector(np.ones_like(q_gamma))
        return ones, ones, self.memory.vector(query_gain(q_gamma, k_gamma))

    def _feed_forward(self, prefix: str, shapes: Mapping[str, tuple[int, int]], *names: str) -> Linear:
        """Upload matrices of the feed-forward part that share their input; of experts, each name in one part."""
        experts = self.config.experts
        if experts is None:
            return self._linear(prefix, shapes, *names)
        parts: list[LinearPart] = []
        first = 0
        columns = 0
        for name in (f"{name}_exps" for name in names):
            matrix = self._linear(prefix, shapes, name)
            if len(matrix.parts) > 1:
                raise ModelError(
                    f"{self.source.path}: the experts of {prefix}{name} exceed what {self.device.info.request} can bind"
                )
            outs = matrix.outs // experts.count
            parts.append(replace(matrix.parts[0], outs=outs, y_first=first))
            first += outs
            columns = matrix.columns
        return Linear(first, columns, tuple(parts))

    def _router(self, prefix: str) -> Dense:
        assert self.config.experts is not None
        shape = self.config.experts.count, self.config.hidden
        return self._dense([self._floats(prefix + "ffn_gate_inp", shape)])

    def _delta(self, prefix: str, net: DeltaNet) -> DeltaWeights:
        """Upload the parameters of a delta net other than its ternary matrices."""
        conv = self._floats(prefix + "ssm_conv1d", (net.channels, net.conv))
        return DeltaWeights(
            conv=self.memory.vector(dense.decode(conv.data, conv.dtype, conv.columns)),
            gates=self._gates(prefix, (net.value_heads, self.config.hidden)),
            rate=self._norm(prefix + "ssm_a", net.value_heads),
            dt=self._norm(prefix + "ssm_dt", net.value_heads),
            norm=self._norm(prefix + "ssm_norm", net.value_dim),
        )

    def _gates(self, prefix: str, shape: tuple[int, int]) -> Dense:
        """Upload ssm_alpha and ssm_beta, stacked by rows."""
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
        """Upload QKV and, in a hybrid model, the gate. Returns both, and both stacked in one matrix if they are
        adjacent."""
        if not self.config.delta:
            return self._linear(prefix, shapes, *names), None, None
        weights = [self._ternary(prefix + name, shapes[name]) for name in (*names, "attn_gate")]
        rows = [weight.rows for weight in weights]
        blocks = [device_block(self.config, weight.block) for weight in weights]
        if not self.memory.unified and adjacent(self.device.info, weights[0].width, rows, blocks):
            both = self._stacked(weights)
            return *both.split(sum(rows[:-1])), both
        return self._stacked(weights[:-1]), self._stacked(weights[-1:]), None

    def _linear(self, prefix: str, shapes: Mapping[str, tuple[int, int]], *names: str) -> Linear:
        """Upload matrices of a layer that share their input, stacked by rows."""
        return self._stacked([self._ternary(prefix + name, shapes[name]) for name in names])

    def _stacked(self, weights: Sequence[TernaryWeight]) -> Linear:
        """Stack matrices by rows. Copied neighbours with the same kind of scales share a launch."""
        parts: list[LinearPart] = []
        first = 0
        for block, group in groupby(weights, lambda weight: device_block(self.config, weight.block)):
            same = list(group)
            scales = np.concatenate([_row_scales(weight, block) for weight in same])
            for start, count, view in self.memory.rows([weight.codes for weight in same]):
                part = self.memory.vector(scales[start : start + count])
                parts.append(LinearPart(view, part, count, first + start, block))
            first += len(scales)
        return Linear(first, weights[0].columns, tuple(parts))

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
        return {name: self._table(name) for name in table_names(self.config)}

    def _table(self, name: str) -> Dense | Linear:
        """Upload token_embd or output, in parts that the device can bind."""
        shape = self.config.vocab, self.config.hidden
        if self.config.ternary_tables:
            return self._stacked([self._ternary(name, shape)])
        weight = self._floats(name, shape)
        return self._dense([weight])

    def _dense(self, weights: Sequence[DenseWeight]) -> Dense:
        """Upload matrices of one type, stacked by rows."""
        data = [weight.data for weight in weights]
        first = weights[0]
        parts = tuple(DensePart(view, start, count) for start, count, view in self.memory.rows(data))
        return Dense(DENSE_TYPES.index(first.dtype), sum(map(len, data)), first.columns, parts)

    def _norm(self, name: str, size: int) -> View:
        return self.memory.vector(self._vector(name, size))

    def _vector(self, name: str, size: int) -> npt.NDArray[np.float32]:
        values = self.source.vector(name)
        if values.shape != (size,):
            raise ModelError(f"{self.source.path}: {name} has shape {list(values.shape)}, not [{size}]")
        return values

    def _advance(self, nbytes: int) -> None:
        self.done += nbytes
        if self.progress:
            self.progress("load", min(self.done, self.total), self.total)


def _row_scales(weight: TernaryWeight, block: int) -> npt.NDArray[np.float32]:
    """Return f32[rows] if block is 0, else f32[rows, ceil(width / block)] with zeros for blocks of padding only."""
    rows = np.broadcast_to(weight.scales.reshape(-1), (weight.rows,)) if weight.scale_kind != "block" else weight.scales
    if not block:
        return rows.astype(np.float32)
    scales = np.zeros((weight.rows, ceil_div(weight.width, block)), np.float32)
    if weight.scale_kind == "block":
        scales[:, : rows.shape[1]] = rows
    else:
        scales[:] = rows[:, None]
    return scales
