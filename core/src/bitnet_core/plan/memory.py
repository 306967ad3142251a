"""Compute the device memory that a model needs before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from bitnet_core.model.config import ModelConfig
from bitnet_core.model.source import ModelSource
from bitnet_core.plan.scratch import logit_rows, scratch_row_bytes
from bitnet_core.plan.upload import weight_bytes


@dataclass(frozen=True, slots=True)
class DeviceMemoryPlan:
    """Bytes by use; weights count in full, although a unified device may read them from the mapped file."""

    weights: int
    kv_cache: int
    decode_scratch: int
    prefill_scratch: int

    @property
    def total(self) -> int:
        """Sum of all uses."""
        return self.weights + self.kv_cache + self.decode_scratch + self.prefill_scratch


def plan_memory(source: ModelSource, *, kv_cache: int, sequences: int, chunk: int) -> DeviceMemoryPlan:
    """Return the memory for `sequences` concurrent requests and prompt steps of `chunk` rows."""
    config = source.config
    return DeviceMemoryPlan(
        weights=weight_bytes(source),
        kv_cache=kv_cache,
        decode_scratch=_scratch(config, sequences, sequences),
        prefill_scratch=_scratch(config, chunk, logit_rows(config, chunk)),
    )


def _scratch(config: ModelConfig, rows: int, wanted: int) -> int:
    step, head = scratch_row_bytes(config)
    return rows * sum(step.values()) + wanted * sum(head.values())
