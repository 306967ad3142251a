"""Compute the device memory that a model needs before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from bitnet_hal.device import DeviceInfo
from bitnet_hal.kernels.catalogue import KV_BLOCK
from bitnet_hal.rounding import ceil_div

from bitnet_core.model.config import ModelConfig
from bitnet_core.model.source import ModelSource
from bitnet_core.plan.kept_inputs import kept_bytes
from bitnet_core.plan.pool import pooled
from bitnet_core.plan.prediction import prediction_scratch
from bitnet_core.plan.scratch import logit_rows, scratch_bytes
from bitnet_core.plan.state_copies import copied_rows_bytes
from bitnet_core.plan.weight_count import weight_sizes


@dataclass(frozen=True, slots=True)
class DeviceMemoryPlan:
    """Bytes by use. weights: with scales, vectors and the rotary table. wrapped: weights that the device reads from
    host memory, not part of the total. prefill_scratch: allocated by the first prompt that fills a step."""

    weights: int
    wrapped: int
    kv_cache: int
    block_tables: int
    decode_scratch: int
    prefill_scratch: int
    lm_head_int8: int = 0

    @property
    def loaded(self) -> int:
        """Bytes that loading a model allocates."""
        return self.weights + self.kv_cache + self.block_tables + self.decode_scratch + self.lm_head_int8

    @property
    def scratch(self) -> int:
        """Sum of the scratch buffers."""
        return self.decode_scratch + self.prefill_scratch

    @property
    def total(self) -> int:
        """Sum of all uses of the device's own memory."""
        return self.loaded + self.prefill_scratch


def plan_memory(
    source: ModelSource,
    config: ModelConfig,
    info: DeviceInfo,
    *,
    context: int,
    sequences: int,
    chunk: int,
    verify_rows: int = 0,
    groups: int = 1,
    kv_cache: int = 0,
    lm_head_int8: int = 0,
) -> DeviceMemoryPlan:
    """Return the memory of the layers of `config` on a device for `sequences` concurrent requests of up to `context`
    tokens, and prompt steps of `chunk` rows. verify_rows: maximum rows of a step that verifies draft tokens. groups:
    number of groups of requests on several devices, each with its own scratch. Raises ModelError and UsageError as
    weight_sizes."""
    weights = weight_sizes(source, config, info, context)
    no_head = config.layers_after > 0
    rows = max(ceil_div(sequences, groups), verify_rows)
    decode = groups * scratch_bytes(config, info, rows, 0 if no_head else rows)
    if verify_rows and config.delta:
        decode += pooled(kept_bytes(config, rows, info.alignment))
        decode += 2 * sum(map(pooled, copied_rows_bytes(config, sequences)))
    if config.prediction_head:
        decode += prediction_scratch(config, info, chunk, sequences)
    return DeviceMemoryPlan(
        weights=weights.allocated,
        wrapped=weights.wrapped,
        kv_cache=kv_cache,
        block_tables=pooled(4 * sequences * ceil_div(context, KV_BLOCK)),
        decode_scratch=decode,
        prefill_scratch=groups * scratch_bytes(config, info, chunk, 0 if no_head else logit_rows(config, chunk)),
        lm_head_int8=lm_head_int8,
    )
