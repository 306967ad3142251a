"""The buffers that a step binds: those of activations, one per role because no launch may read and write the same
buffer, and those of the cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import Buffer, Device, DeviceInfo, View, whole
from bitnet_hal.kernels.catalogue import STEP_FIELDS
from bitnet_hal.kernels.lm_head_int8 import HEAD_GROUP
from bitnet_hal.kernels.sizes import row_scales
from bitnet_hal.rounding import ceil_div

from bitnet_core.model.config import DeltaNet, Experts, ModelConfig
from bitnet_core.model.weights import padded
from bitnet_core.plan.pool import MemoryPool, pooled

HISTORY = 64
"""Length of a row's token ring: tokens that stay on the device until the host reads them."""

SHORTLIST = 256
"""Largest number of candidates that the top_k kernel can list."""

_LOGIT_BYTES = 32 << 20
"""Largest size in bytes of the logits of a prompt step on the device."""


def logit_rows(config: ModelConfig, chunk: int) -> int:
    """Return the number of rows whose logits a step of `chunk` rows computes at once."""
    return min(chunk, max(1, _LOGIT_BYTES // (4 * config.vocab)))


def scratch_row_bytes(config: ModelConfig) -> tuple[dict[str, int], dict[str, int]]:
    """Return the bytes of every scratch buffer: per row of the step, and per row whose logits are computed."""
    mixed = config.delta.value_width if config.delta else 0
    widest = max(padded(columns) for columns in (config.hidden, config.q_width, config.ffn, mixed))
    scales = 4 * row_scales(widest, config.activation_group_size)
    step = {
        "x": 4 * config.hidden,
        "quantized": widest,
        "scale": scales,
        "qsum": scales,
        "added_codes": widest,
        "added_scale": scales,
        "added_qsum": scales,
        "qkv": 4 * (config.q_width + 2 * config.kv_width),
        "queries": 4 * config.q_width,
        "heads": 4 * config.q_width,
        "gate_up": 8 * config.ffn,
        "step": 4 * STEP_FIELDS,
    }
    if config.qk_norm_after_rope:
        step["head"] = 4 * config.n_heads
    if config.projection_norms:
        step |= {"plain": 4 * config.hidden, "row": 4}
    if config.experts:
        step |= _expert_bytes(config, config.experts, step)
    if config.delta:
        step |= _delta_net_bytes(config, config.delta)
    wanted = {
        "index": 4,
        "normed": 4 * config.hidden,
        "logits": 4 * config.vocab,
        "history": 4 * (HISTORY + 1),
        "bound": 4 * ceil_div(config.vocab, HEAD_GROUP),
        "mask": 4 * ceil_div(config.tokens, 32),
        "lists": 8 * SHORTLIST + 8,
    }
    return step, wanted


def scratch_bytes(
    config: ModelConfig, info: DeviceInfo, rows: int, wanted: int, more: Mapping[str, int] | None = None
) -> int:
    """Return the bytes of all buffers of a Scratch."""
    return sum(pooled(nbytes) for nbytes in _buffer_sizes(config, info, rows, wanted, more or {}).values())


def _buffer_sizes(
    config: ModelConfig, info: DeviceInfo, rows: int, wanted: int, more: Mapping[str, int]
) -> dict[str, int]:
    """Return the bytes of every buffer; without those of the head if `wanted` is 0."""
    step, head = scratch_row_bytes(config)
    sizes = {name: rows * nbytes for name, nbytes in (step | dict(more)).items()}
    if wanted:
        sizes |= {name: wanted * nbytes for name, nbytes in head.items()}
        sizes["lists"] += 2 * info.alignment
    return sizes


def _delta_net_bytes(config: ModelConfig, net: DeltaNet) -> dict[str, int]:
    """Return the bytes per row of the additional and the larger buffers of a model with delta nets (plan.hybrid)."""
    heads = max(config.q_width, net.value_width)
    widest = max(config.hidden, config.ffn, heads)
    return {
        "qkv": 4 * max(config.q_width + 2 * config.kv_width, net.channels),
        "heads": 4 * heads,
        "gate": 4 * heads,
        "mixed": 4 * net.channels,
        "gates": 8 * net.value_heads,
        "plain": 4 * widest,
        "row": 4,
        **({"turned": 4 * widest} if config.hadamard else {}),
    }


def _expert_bytes(config: ModelConfig, experts: Experts, step: dict[str, int]) -> dict[str, int]:
    """Return the bytes per row of the additional and the larger buffers of a mixture of experts (plan.experts): each
    row has `used` rows of gate, up and results. step: the bytes of the usual buffers."""
    width = padded(config.ffn)
    scales = 4 * row_scales(width, config.activation_group_size)
    return {
        "quantized": max(step["quantized"], experts.used * width),
        "scale": max(step["scale"], experts.used * scales),
        "qsum": max(step["qsum"], experts.used * scales),
        "gate_up": experts.used * 8 * config.ffn,
        "routes": 4 * experts.count,
        "chosen": 4 * experts.used,
        "shares": 4 * experts.used,
        "results": experts.used * 4 * config.hidden,
        "plain": 4 * config.hidden,
        "row": 4,
    }


class CacheViews(Protocol):
    """The buffers of a paged cache that the plan binds."""

    @property
    def keys(self) -> tuple[View, ...]: ...

    @property
    def values(self) -> tuple[View, ...]: ...

    @property
    def states(self) -> tuple[tuple[View, View], ...]:
        """The last inputs of the convolution and the states of the heads, for each delta net."""

    @property
    def tables(self) -> View:
        """Block tables, i32[sequences, max_blocks]."""

    @property
    def max_blocks(self) -> int: ...


class Scratch:
    """The buffers for steps of up to `rows` rows with up to `wanted` rows of logits, 0 on a device without the head.
    more: bytes per row of further buffers, by name."""

    def __init__(
        self,
        device: Device,
        pool: MemoryPool,
        config: ModelConfig,
        rows: int,
        wanted: int,
        more: Mapping[str, int] | None = None,
    ) -> None:
        self.device = device
        self.rows = rows
        self.wanted = wanted
        self.pool = pool
        step, head = scratch_row_bytes(config)
        step |= more or {}
        self._row_bytes = step | head
        self._buffers: dict[str, Buffer] = {}
        try:
            for name, nbytes in _buffer_sizes(config, device.info, rows, wanted, more or {}).items():
                self._buffers[name] = pool.alloc(nbytes)
            if "row" in step:
                self.upload("row", np.arange(rows, dtype=np.int32))
            if "head" in step:
                self.upload("head", np.arange(rows * config.n_heads, dtype=np.int32))
        except BaseException:
            self.free()
            raise

    def view(self, name: str, rows: int, row_bytes: int | None = None) -> View:
        """Return the view of the first `rows` rows of a buffer. row_bytes: set if the launch uses shorter rows."""
        return View(self._buffers[name], 0, rows * (self._row_bytes[name] if row_bytes is None else row_bytes))

    def lists(self, rows: int, k: int) -> tuple[View, View, View]:
        """Return the views of the shortlists: ids i32[rows, k], values f32[rows, k] and totals f32[rows, 2], in this
        order, so that one download reads them."""
        nbytes = 4 * rows * k
        aligned = ceil_div(nbytes, self.device.info.alignment) * self.device.info.alignment
        buffer = whole(self._buffers["lists"])
        return buffer.part(0, nbytes), buffer.part(aligned, nbytes), buffer.part(2 * aligned, 8 * rows)

    def upload(self, name: str, values: npt.NDArray[np.int32] | npt.NDArray[np.float32], first: int = 0) -> None:
        """Copy a C-contiguous array to a buffer, from row `first` on."""
        at = first * self._row_bytes[name]
        self.device.upload(View(self._buffers[name], at, values.nbytes), values.data.cast("B"))
        self.pool.moved_bytes += values.nbytes

    def download(self, name: str, out: npt.NDArray[np.float32] | npt.NDArray[np.int32]) -> None:
        """Read the start of a buffer into a C-contiguous array."""
        self.device.download(View(self._buffers[name], 0, out.nbytes), out.data.cast("B"))
        self.pool.moved_bytes += out.nbytes

    def free(self) -> None:
        """Return all buffers to the pool."""
        for buffer in self._buffers.values():
            self.pool.free(buffer)
        self._buffers.clear()
