"""Prompts and keyword arguments of the Python API, typed for editors and type checkers.

`python docs/pages.py` writes the generated keys from the dataclasses of bitnet_core.options.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from bitnet_core.options.embedding import EmbeddingType
from bitnet_core.options.engine import AutoOnOff, Eviction, KvCacheType, MemoryPoolConfig, Offload, Speculate
from bitnet_core.options.loading import Layout
from bitnet_core.progress import Progress

Prompt = str | Sequence[int]
"""A text, or token ids."""


class LoadSettings(TypedDict, total=False):
    """Keyword arguments of `load`."""

    # <!-- keywords LoadOptions EngineOptions -->
    layout: Layout | None
    strict: bool | None
    mmap: bool
    fallback: bool
    draft_model: str | None
    draft_device: str | None
    kv_cache_type: KvCacheType
    activation_group_size: Literal[32, 128] | None
    context: int | None
    kv_cache_size: int | None
    max_sequences: int
    eviction: Eviction
    prefill_chunk: int
    lm_head_int8: AutoOnOff
    speculate: Speculate
    deterministic: bool
    split: str | None
    device_memory: int | None
    offload: Offload
    stream_interval: float
    pool: MemoryPoolConfig
    # <!-- end -->
    progress: Progress | None


class SamplingOptions(TypedDict, total=False):
    """Sampling options; None means the model's own default."""

    # <!-- keywords SamplingParams -->
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    top_n_sigma: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    logprobs: int | None
    seed: int | None
    # <!-- end -->


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


class EmbedSettings(TypedDict, total=False):
    """Keyword arguments of `Model.embed`."""

    # <!-- keywords EmbedOptions -->
    dimensions: int | None
    dtype: EmbeddingType
    truncate: bool
    # <!-- end -->
