"""What `Model` takes: prompts and keyword arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from bitnet_core.engine.kv_cache.block_pool import Eviction
from bitnet_core.plan.lm_head_int8 import AutoOnOff
from bitnet_core.plan.pool import MemoryPoolConfig
from bitnet_core.progress import Progress

Prompt = str | Sequence[int]
"""Text, or token ids as they are."""


class EngineSettings(TypedDict, total=False):
    """How texts are made and where their keys and values are kept, as in EngineOptions."""

    kv_dtype: str
    context: int | None
    kv_cache_bytes: int | None
    max_sequences: int
    eviction: Eviction
    stream_interval: float
    lm_head_int8: AutoOnOff
    prompt_lookup: AutoOnOff
    activation_group_size: int | None
    deterministic: bool
    pool: MemoryPoolConfig


class SamplingOptions(TypedDict, total=False):
    """How tokens are chosen, as in SamplingParams; None for the model's own default."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    presence_penalty: float
    frequency_penalty: float
    logprobs: int | None
    seed: int | None


class GenerateOptions(SamplingOptions, total=False):
    """Keyword arguments of `Model.generate`."""

    max_tokens: int
    stop: str | Iterable[str]
    stop_token_ids: Iterable[int]
    response_format: Mapping[str, Any] | None
    progress: Progress | None


class ChatOptions(GenerateOptions, total=False):
    """Keyword arguments of `Model.chat`."""

    enable_thinking: bool | None
    reasoning_budget: int | None
    tools: Sequence[Mapping[str, Any]] | None
