"""Upload the weights of a model file to a device, in the form that the plan binds."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing, suppress
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import Device, View
from bitnet_hal.errors import GpuError, OutOfMemoryError

from bitnet_core.errors import ModelError
from bitnet_core.formats import dense
from bitnet_core.formats.names import INPUT_NORM, matrices, signs_name
from bitnet_core.formats.threads import reader_pool
from bitnet_core.model.config import DeltaNet, ModelConfig
from bitnet_core.model.source import ModelSource
from bitnet_core.plan.device_weights import (
    DeltaWeights,
    Dense,
    DeviceWeights,
    LayerWeights,
    Linear,
    LinearPart,
    Projection,
    joined,
)
from bitnet_core.plan.norm_after_rope import query_gain
from bitnet_core.plan.prediction_weights import PredictionWeights, prediction_bytes, upload_prediction
from bitnet_core.plan.repacking import OddBlocksError, Repacker, can_repack
from bitnet_core.plan.rotary import rotary_table
from bitnet_core.plan.tensor_upload import TensorUploader
from bitnet_core.plan.weight_memory import WeightMemory
from bitnet_core.plan.weight_sizes import adjacent, device_block, table_names, weight_bytes
from bitnet_core.progress import Progress
from bitnet_core.units import size

LAYERS_AHEAD = 2
"""Number of layers that are in host memory at once, including the one being uploaded."""

RELEASE_BYTES = 256 << 20
"""Release the pages of the mapped file after uploading this many bytes; pages needed again are re-read."""

log = logging.getLogger(__name__)

_SUB_NORM_OF = {"attn_output": "attn_sub_norm", "ffn_down": "ffn_sub_norm"}


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
    prediction: also its prediction head. A device that can converts the codes of Q2_0 files. If it finds blocks that
    only the host can judge, or lacks memory beside the file's blocks, the host converts all codes.

    Raises ModelError if a tensor does not have the shape that the configuration states, and GpuErrors of the device;
    all buffers are then freed.
    """
    config = config or source.config
    if can_repack(device.info):
        with closing(Repacker(device)) as repacker:
            try:
                return _upload(source, device, positions, progress, config, prediction, repacker)
            except OddBlocksError:
                log.info("%s: the host converts the codes, because some blocks are odd", source.path)
            except OutOfMemoryError:
                if not repacker.used:
                    raise
    return _upload(source, device, positions, progress, config, prediction, None)


def _upload(
    source: ModelSource,
    device: Device,
    positions: int,
    progress: Progress | None,
    config: ModelConfig,
    prediction: bool,
    repacker: Repacker | None,
) -> DeviceWeights:
    total = weight_bytes(source, config) + (prediction_bytes(source) if prediction else 0)
    done = 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress:
            progress("load", min(done, total), total)

    memory = WeightMemory(device, source.path, advance, repacker)
    try:
        weights = WeightUploader(source, config, device.info, memory).all(positions, prediction=prediction)
        if repacker is not None:
            repacker.check()
        return weights
    except BaseException as error:
        if isinstance(error, OutOfMemoryError):
            error.hint = (
                f"The weights take {size(total)}, whatever the context: use a smaller model, another device, "
                "or close other programs that use this one"
            )
        for buffer in memory.buffers:
            with suppress(GpuError):  # the device may be lost: the first error is reported
                device.free(buffer)
        raise


class WeightUploader(TensorUploader):
    """Uploads all weights of a model, layer by layer."""

    def all(self, positions: int, *, prediction: bool) -> DeviceWeights:
        """Upload the layers, the tables, and with `prediction` the prediction head."""
        config = self.config
        with reader_pool() as readers:
            rope = readers.submit(self._rope, positions)
            if config.ternary_tables:
                self._read_ahead(table_names(config), readers)
            tables = self._tables() if self.memory.unified else {}  # first, while most host memory is free
            layers: list[LayerWeights] = []
            released = 0
            for number in range(config.n_layers):
                layers.append(self._layer(number, readers))
                if self.memory.placed - released >= RELEASE_BYTES:
                    self._release_pages()
                    released = self.memory.placed
            tables = tables or self._tables()
        head = self._prediction() if prediction else None
        self._release_pages()
        output_norm = self._norm("output_norm", config.hidden)
        rotary = self.memory.vector(rope.result())
        unrotated = self._unrotated(positions)
        signs = self._signs()
        return DeviceWeights(
            config=config,
            layers=tuple(layers),
            embedding=None if config.layers_before else tables["token_embd"],
            head=None if config.layers_after else tables["token_embd" if config.tied_head else "output"],
            output_norm=output_norm,
            rope=rotary,
            positions=positions,
            nbytes=self.memory.allocated,
            wrapped_bytes=self.memory.wrapped,
            _buffers=self.memory.buffers,
            _hosts=self.memory.hosts,
            unrotated=unrotated,
            signs=signs,
            prediction=head,
        )

    def _prediction(self) -> PredictionWeights | None:
        return upload_prediction(self.source, self.memory)

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

    def _rope(self, positions: int) -> npt.NDArray[np.float32]:
        return rotary_table(self.source, self.config, self.info, positions)

    def _unrotated(self, positions: int) -> View | None:
        """Upload the rotary table of layers without positions; None if there are none."""
        if self.config.windows is None or all(self.config.windows.layers):
            return None
        pairs = positions * self.config.head_dim // 2
        return self.memory.vector(np.broadcast_to(np.array([1, 0], np.float32), (pairs, 2)))

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
        """Upload matrices that share their input, but each norm it, as rows of one stack; () if they do not norm it."""
        found: list[Projection] = []
        first = 0
        for name in names if self.config.projection_norms else ():
            matrix = self._linear(prefix, shapes, name).stacked_at(first)
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
        """Upload matrices of the feed-forward part that share their input. Those of experts are in one part per
        name."""
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
                    f"{self.source.path}: the experts of {prefix}{name} exceed what {self.info.request} can bind"
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
        if not self.memory.unified and adjacent(self.info, weights[0].width, rows, blocks):
            both = self._stacked(weights)
            return *both.split(sum(rows[:-1])), both
        return self._stacked(weights[:-1]), self._stacked(weights[-1:]), None

    def _tables(self) -> dict[str, Dense | Linear]:
        return {name: self._table(name) for name in table_names(self.config)}

    def _table(self, name: str) -> Dense | Linear:
        """Upload token_embd or output, in parts that the device can bind."""
        shape = self.config.vocab, self.config.hidden
        if self.config.ternary_tables:
            return self._stacked([self._ternary(name, shape)])
        weight = self._floats(name, shape)
        return self._dense([weight])
