"""Compute the device memory that a model needs before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from bitnet_core.model.config import ModelConfig
from bitnet_core.model.source import ModelSource
from bitnet_core.plan.kept_inputs import kept_bytes
from bitnet_core.plan.prediction import prediction_scratch
from bitnet_core.plan.prediction_weights import prediction_bytes
from bitnet_core.plan.scratch import logit_rows, scratch_row_bytes
from bitnet_core.plan.upload import weight_bytes

_ALIGNMENT = 256
"""Alignment in bytes that is assumed of views; few devices ask for more."""


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


def plan_memory(
    source: ModelSource, *, kv_cache: int, sequences: int, chunk: int, verify_rows: int = 0, prediction: bool = False
) -> DeviceMemoryPlan:
    """Return the memory for `sequences` concurrent requests, prompt steps of `chunk` rows, and steps of `verify_rows`
    rows that verify draft tokens. prediction: with the model's prediction head."""
    config = source.config
    rows = max(sequences, verify_rows)
    kept = kept_bytes(config, rows, _ALIGNMENT) if verify_rows else 0
    head = prediction_scratch(config, chunk, sequences) if prediction else 0
    return DeviceMemoryPlan(
        weights=weight_bytes(source) + (prediction_bytes(source) if prediction else 0),
        kv_cache=kv_cache,
        decode_scratch=_scratch(config, rows, rows) + kept,
        prefill_scratch=_scratch(config, chunk, logit_rows(config, chunk)) + head,
    )


def _scratch(config: ModelConfig, rows: int, wanted: int) -> int:
    step, head = scratch_row_bytes(config)
    return rows * sum(step.values()) + wanted * sum(head.values())
