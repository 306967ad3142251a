"""What a caller may set, and what a device makes of it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from math import inf, nan
from numbers import Integral
from typing import get_args

from bitnet_hal.device import Device, DeviceInfo, DeviceType
from bitnet_hal.errors import UsageError
from bitnet_hal.kernels.catalogue import ACT_GROUP_SIZES, KV_BLOCK, KV_TYPES
from bitnet_hal.rounding import ceil_div

from bitnet_core.engine.kv_cache.block_pool import Eviction
from bitnet_core.engine.kv_cache.cache import block_bytes, cache_bytes
from bitnet_core.model.config import ModelConfig
from bitnet_core.model.source import ModelSource
from bitnet_core.plan.lm_head_int8 import AutoOnOff
from bitnet_core.plan.memory import plan_memory
from bitnet_core.plan.pool import MemoryPoolConfig
from bitnet_core.plan.scratch import scratch_row_bytes

log = logging.getLogger(__name__)

DEFAULT_CONTEXT = 1 << 17
"""Longest context in tokens that is taken from a model file alone; a longer one has to be asked for."""

MOST_SEQUENCES = 1 << 16
"""Tables have a row for each, whether it is used or not."""

WIDEST_CHUNK = {DeviceType.CPU: 256, DeviceType.GPU: 1024}
"""Most rows of a prompt step by device type (512 elsewhere). More gain a CPU little, and their activations take
resident memory; a discrete GPU needs that many to be busy."""

_ROOMY, _ROOMY_CHUNK = 64 << 30, 4096
"""The same for discrete GPUs with so much memory: more rows fill the last turn of a large GPU's multiprocessors better,
and their activations are less than a hundredth of it."""

_SHARED_MOST = 1 << 30
_LEAST_BLOCKS = 8
"""Of a cache that nobody sized, however little is free: lack of memory is then told when it is allocated."""

_LEAST_CPU_CHUNK, _ROWS_PER_THREAD = 64, 32  # the fewer threads, the less is gained by more rows


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """kv_dtype is one of KV_TYPES; context None means the model's, up to DEFAULT_CONTEXT; kv_cache_bytes is in bytes,
    None for what `free_share` gives; prefill_chunk in rows, at most what WIDEST_CHUNK has for the device;
    stream_interval is about how long greedy tokens are made before the host looks; lm_head_int8: whether an f16 head
    gets an int8 copy (plan.lm_head_int8); prompt_lookup: whether the next tokens of a greedy text that is alone are
    guessed and checked (engine.speculative): "auto" where that saves time, "on" wherever there are guesses;
    activation_group_size: columns that share an activation scale, 32 or 128, of models that have one for blocks (None:
    32); deterministic: a text never depends on the requests beside it: no fused kernels, no measured tilings, and steps
    of no more rows than the device keeps batch-invariant; pool: limits of the pool that buffers of steps come from."""

    kv_dtype: str = "f16"
    context: int | None = None
    kv_cache_bytes: int | None = None
    prefill_chunk: int = _ROOMY_CHUNK
    max_sequences: int = 32
    eviction: Eviction = "lru"
    lm_head_int8: AutoOnOff = "auto"
    prompt_lookup: AutoOnOff = "auto"
    activation_group_size: int | None = None
    deterministic: bool = False
    stream_interval: float = 0.1
    pool: MemoryPoolConfig = field(default_factory=MemoryPoolConfig)

    def __post_init__(self) -> None:
        if self.kv_dtype not in KV_TYPES:
            raise UsageError(f"kv_dtype '{self.kv_dtype}' is not one of {', '.join(KV_TYPES)}")
        if self.eviction not in get_args(Eviction):
            raise UsageError(f"eviction '{self.eviction}' is not one of {', '.join(get_args(Eviction))}")
        for name in ("lm_head_int8", "prompt_lookup"):
            if (value := getattr(self, name)) not in get_args(AutoOnOff):
                raise UsageError(f"{name} '{value}' is not one of {', '.join(get_args(AutoOnOff))}")
        if self.activation_group_size not in (None, *ACT_GROUP_SIZES[1:]):
            raise UsageError(
                f"activation_group_size is {self.activation_group_size}; 32 and 128 columns can share a scale"
            )
        if self.context is not None and not _at_least(2, self.context):
            raise UsageError("context must be 2 tokens or more")
        for name in ("kv_cache_bytes", "prefill_chunk", "max_sequences"):
            if (value := getattr(self, name)) is not None and not _at_least(1, value):
                raise UsageError(f"{name} must be a whole number of 1 or more, not {value}")
        if self.max_sequences > MOST_SEQUENCES:
            raise UsageError(f"max_sequences is {self.max_sequences}; at most {MOST_SEQUENCES} are possible")
        if not 0 < _number(self.stream_interval) < inf:
            raise UsageError("stream_interval must be a number above 0")

    def config_of(self, config: ModelConfig) -> ModelConfig:
        """With the activation scales that are asked for; UsageError for a model that was trained with one a row."""
        if self.activation_group_size is None:
            return config
        if not config.activation_group_size:
            raise UsageError(
                f"activation_group_size {self.activation_group_size}: this model was trained with one scale a row"
            )
        return replace(config, activation_group_size=self.activation_group_size)

    def context_of(self, config: ModelConfig) -> int:
        """Tokens of the longest sequence; UsageError if that is more than the model was made for."""
        if self.context is not None and self.context > config.context:
            raise UsageError(f"context {self.context} is more than the model's {config.context} tokens")
        return self.context or min(config.context, DEFAULT_CONTEXT)

    def concurrency(self, source: ModelSource, device: Device, sequences: int, chunk: int) -> tuple[int, int]:
        """Texts at a time, `sequences` at most and at least one, and snapshots of their delta nets' states, no more
        than those: as many as find room in half of what the cache may take, and in the device's largest buffer."""
        config = source.config
        if config.delta is None:
            return sequences, 0
        taken = plan_memory(source, kv_cache=0, sequences=sequences, chunk=chunk).total
        budget = free_share(device, taken) if self.kv_cache_bytes is None else self.kv_cache_bytes
        largest = 4 * max(config.delta.state_sizes)
        if any(limit < largest for limit in _limits(device.info)):
            raise UsageError(
                f"a delta net's state of one request takes {largest:,} bytes, more than {device.info.request} can bind"
            )
        fit = min([budget // 2 // config.state_bytes, *(limit // largest for limit in _limits(device.info))])
        texts = min(sequences, max((fit + 1) // 2, 1))
        if texts < sequences:
            log.info("states of delta nets take %d bytes a request: %d concurrent requests", config.state_bytes, texts)
        return texts, min(max(fit - texts, 0), texts)

    def cache_blocks(
        self, config: ModelConfig, info: DeviceInfo, sequences: int, share: int, checkpoints: int = 0
    ) -> int:
        """Blocks that the budget, or without one the share of the device's memory, and its largest buffer hold beside
        the states of delta nets, no more than full sequences can use."""
        size, states = (
            block_bytes(config, self.kv_dtype),
            cache_bytes(config, self.kv_dtype, 0, sequences + checkpoints),
        )
        need = cache_bytes(config, self.kv_dtype, 1, 0)
        budget = max(share, _LEAST_BLOCKS * need + states) if self.kv_cache_bytes is None else self.kv_cache_bytes
        blocks = min(
            max(0, budget - states) // need,
            sequences * ceil_div(self.context_of(config), KV_BLOCK),
            *(limit // size for limit in _limits(info)),
        )
        if not blocks:
            kept = f", and the states of {sequences} requests {states:,}" if states else ""
            raise UsageError(f"a kv_cache_bytes of {budget:,} bytes is too small: one block takes {need:,}{kept}")
        return blocks


def free_share(device: Device, taken: int) -> int:
    """Bytes for keys and values where nobody names them, on a device that weights and scratch of `taken` bytes come to.

    A GPU with memory of its own gives half of what is left of it; a driver that does not tell what is free is taken to
    have all of it free. Others share their memory with all programs: a quarter of what is free, up to 1 GiB.
    """
    info, free = device.info, device.free_memory()
    if info.type is DeviceType.GPU:
        return max(0, (info.total_memory if free < 0 else free) - taken) // 2 or _SHARED_MOST
    return _SHARED_MOST if free < 0 else min(_SHARED_MOST, free // 4)


def share_rule(info: DeviceInfo) -> str:
    """`free_share` for people."""
    if info.type is DeviceType.GPU:
        return "half of the memory that weights and scratch leave free"
    return "a quarter of the free memory, up to 1 GiB"


def widest_chunk(config: ModelConfig, info: DeviceInfo, chunk: int, sequences: int) -> int:
    """Rows of a prompt step, at most `chunk`, whose widest activations the device can bind, and at most WIDEST_CHUNK
    (more on a discrete GPU with much memory, fewer on a CPU that names few threads) or a row for each sequence."""
    rows, threads = WIDEST_CHUNK.get(info.type, 512), info.extra.get("threads")
    if info.type is DeviceType.CPU and isinstance(threads, int):
        rows = min(rows, max(_LEAST_CPU_CHUNK, threads * _ROWS_PER_THREAD))
    if info.type is DeviceType.GPU and info.total_memory >= _ROOMY:
        rows = _ROOMY_CHUNK
    chunk = min(chunk, max(rows, sequences))
    widest = max(scratch_row_bytes(config)[0].values())
    return max(1, min(chunk, *(limit // widest for limit in _limits(info)), chunk))


def _at_least(least: int, value: object) -> bool:
    return isinstance(value, Integral) and int(value) >= least


def _number(value: object) -> float:
    """NaN for what is no number."""
    return float(value) if isinstance(value, int | float) else nan


def _limits(info: DeviceInfo) -> list[int]:
    return [limit for limit in (info.max_binding, info.max_allocation) if limit]
