"""Predict whether a model fits a device: the memory with the options' sizes, and the least that it can run with."""

from __future__ import annotations

from dataclasses import dataclass

from bitnet_hal.device import Device
from bitnet_hal.kernels.catalogue import KV_BLOCK
from bitnet_hal.rounding import ceil_div

from bitnet_core.engine.capacity import cache_blocks, concurrency, free_share, widest_chunk
from bitnet_core.engine.kv_cache.cache import cache_bytes
from bitnet_core.engine.part import head_choice
from bitnet_core.engine.speculation.choice import verify_rows
from bitnet_core.model.config import ModelConfig
from bitnet_core.model.source import ModelSource
from bitnet_core.options.engine import EngineOptions
from bitnet_core.plan.lm_head_int8 import planned_int8
from bitnet_core.plan.memory import DeviceMemoryPlan, plan_memory

FEWEST_BLOCKS = 8
"""Lower limit when the cache is shrunk, unless the context is shorter."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The memory of a model on a device: with the options' sizes, and with the smallest that recovery from lack of
    memory reaches (`least`). least_part: as `least`, with the last layer only. free: bytes, -1 if not known."""

    wanted: DeviceMemoryPlan
    least: DeviceMemoryPlan
    least_part: DeviceMemoryPlan
    free: int

    @property
    def loads(self) -> bool:
        """True if loading succeeds, possibly with fewer requests and a smaller cache."""
        return self.free < 0 or self.least.loaded <= self.free

    @property
    def loads_partly(self) -> bool:
        """True if the device can hold the last layer, when others compute the rest."""
        return self.free < 0 or self.least_part.loaded <= self.free

    @property
    def fits(self) -> bool:
        """True if loading succeeds with the options' sizes."""
        return self.free < 0 or self.wanted.total <= self.free


def predict(source: ModelSource, device: Device, options: EngineOptions) -> Fit:
    """Compare a model's memory with the free memory of an open device on which nothing is loaded. Raises the UsageError
    or ModelError with which loading would fail."""
    info = device.info
    config = options.config_of(source.config)
    context = options.context_of(config)
    wanted_chunk = max(options.prefill_chunk, options.max_sequences)
    chunk = widest_chunk(config, info, wanted_chunk, options.max_sequences)
    room = concurrency(options, source, device, options.max_sequences, chunk)
    can_verify = config.delta is None or room.spares > 0

    def planned(part: ModelConfig, rows: int, sequences: int, cache: int, int8: int = 0) -> DeviceMemoryPlan:
        verified = verify_rows(options, part, info, sequences, rows) if part is config and can_verify else 0
        sizes = {"context": context, "sequences": sequences, "chunk": rows, "verify_rows": verified}
        return plan_memory(source, part, info, **sizes, kv_cache=cache, lm_head_int8=int8)

    plan = planned(config, chunk, room.requests, 0)
    blocks = cache_blocks(options, config, info, room.requests, free_share(device, plan.total), room.more_states)
    free = device.free_memory()
    if free < 0 and info.total_memory:
        free = info.total_memory
    left = free if free < 0 else max(0, free - plan.weights)
    int8 = planned_int8(source, config, info, head_choice(options, config, info), left)
    fewest = min(blocks, FEWEST_BLOCKS, ceil_div(context, KV_BLOCK))
    few_rows = min(chunk, 32)
    last = config.part(config.n_layers - 1, 1)
    kind = options.kv_cache_type
    return Fit(
        planned(
            config, chunk, room.requests, cache_bytes(config, kind, blocks, room.requests + room.more_states), int8
        ),
        planned(config, few_rows, 1, cache_bytes(config, kind, fewest, 1 + min(room.spares, 1)), int8),
        planned(last, few_rows, 1, cache_bytes(last, kind, fewest, 1), int8),
        free,
    )
