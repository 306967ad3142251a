"""The options of the engine."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from bitnet_hal.errors import UsageError

from bitnet_core.options.fields import CACHE, DEVICE, MODEL, check_options, option
from bitnet_core.options.split import parse_split

if TYPE_CHECKING:
    from bitnet_core.model.config import ModelConfig

AutoOnOff = Literal["auto", "on", "off"]
Eviction = Literal["lru", "fifo", "lfu"]
KvCacheType = Literal["f16", "f32", "int8"]
Speculate = Literal["off", "auto", "lookup", "mtp", "draft"]
Offload = int | Literal["auto", "none"]

DEFAULT_CONTEXT = 1 << 17
"""Longest context in tokens that is taken from a model file alone; a longer one has to be asked for."""

MAX_SEQUENCES = 1 << 16
"""Limit of max_sequences: tables have a row for each sequence, whether it is used or not."""

MAX_PREFILL_CHUNK = 4096
"""Rows of a prompt step on a discrete GPU with much memory: more fill it no better."""


def nbytes(text: str) -> int:
    """Return the bytes of a size such as 800M, 4G or 1.5GiB (powers of 1024). Raises UsageError for another text."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,3})?)\s*([KMGT]?)(?:I?B)?", text.strip().upper(), re.ASCII)
    if match is None or not float(match[1]):
        raise UsageError(f"'{text[:40]}' is not a valid size: use a number with K, M, G or T, as in 800M or 4G")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2] or " "))


def offload(text: str) -> Offload:
    """Return the value of `offload` from the command line's text. Raises UsageError for another text."""
    if text in ("auto", "none"):
        return text  # type: ignore[return-value]  # mypy does not narrow a text to a Literal
    if re.fullmatch(r"\d{1,9}", text, re.ASCII):
        return int(text)
    raise UsageError(f"'{text[:40]}' is not a number of layers, auto or none")


@dataclass(frozen=True, slots=True)
class MemoryPoolConfig:
    """Limits of a pool. max_cached_bytes: unused bytes kept for reuse, at most half of the device's free memory."""

    max_cached_bytes: int = 2 << 30


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The options of an engine. Raises UsageError for a value of a wrong type or out of range."""

    kv_cache_type: KvCacheType = option("f16", group=CACHE, help="Storage of the KV cache.")
    activation_group_size: Literal[32, 128] | None = option(
        None,
        group=MODEL,
        help="Columns that share an activation scale, in models whose activations are scaled in groups: 128 makes "
        "prompts faster and rounds more coarsely. Default: 128 if weights are rotated (Bonsai 2), else 32.",
    )
    context: int | None = option(
        None,
        at_least=2,
        flags=("--context", "-c"),
        group=CACHE,
        help="Longest sequence, in tokens. Default: the model's, up to 131,072.",
    )
    kv_cache_size: int | None = option(
        None,
        at_least=1,
        metavar="SIZE",
        parse=nbytes,
        group=CACHE,
        help="Memory of the KV cache, such as 800M or 4G (in Python: bytes). Default: on a GPU with its own memory "
        "half of the memory that weights and scratch leave free, on other devices a quarter of the free memory, at "
        "most 1 GiB; never more than needed.",
    )
    max_sequences: int = option(32, at_least=1, at_most=MAX_SEQUENCES, group=CACHE, help="Maximum concurrent requests.")
    eviction: Eviction = option("lru", group=CACHE, help="Order in which reusable prefixes leave the KV cache.")
    prefill_chunk: int = option(
        MAX_PREFILL_CHUNK,
        at_least=1,
        group=CACHE,
        help="Maximum prompt tokens in a step; a device may have a lower limit. Fewer tokens take less memory for "
        "activations, and running requests wait less; more tokens make long prompts faster.",
    )
    lm_head_int8: AutoOnOff = option(
        "auto",
        flags=(),
        help="Choose tokens with an int8 copy of an f16 head: the same tokens, and half the bytes to read. auto: if "
        "this saves time.",
    )
    speculate: Speculate = option(
        "auto",
        group=DEVICE,
        help="Speculative decoding: verify several draft tokens in one step; texts are the same. lookup: drafts from "
        "the text itself; draft: from a draft model; mtp: from the model's own head; auto: draft if there is a draft "
        "model, else lookup. Used while it saves time, on devices with the feature `batch-invariant` (cpu) or with "
        "`deterministic`.",
    )
    deterministic: bool = option(
        False,
        group=DEVICE,
        help="Make every text independent of the requests beside it, on any device: few fused kernels, and steps of no "
        "more rows than the device keeps batch-invariant (`bitnet devices -v`), which may be slower.",
    )
    split: str | None = option(
        None,
        metavar="auto|DEVICE:N,...",
        group=DEVICE,
        help="Place the layers on several devices. auto: on all GPUs, by memory and measured speed; else a list of "
        "devices with their numbers of layers, such as cuda:0:20,vulkan:1:10.",
    )
    device_memory: int | None = option(
        None,
        at_least=1,
        metavar="SIZE",
        parse=nbytes,
        group=DEVICE,
        help="Maximum memory of the model on each device, such as 4G (in Python: bytes): weights, cache, scratch and a "
        "draft model. The driver's own memory comes on top; layers that `offload` moves to the CPU are not counted. "
        "Default: no limit.",
    )
    offload: Offload = option(
        "auto",
        metavar="auto|N|none",
        parse=offload,
        group=DEVICE,
        help="Number of first layers that the CPU computes for a GPU. auto: those for which the GPU lacks memory. "
        "Default: auto.",
    )
    stream_interval: float = option(
        0.1, above=0, flags=(), help="Approximate seconds of greedy decoding between two chunks of a stream."
    )
    pool: MemoryPoolConfig = option(
        factory=MemoryPoolConfig, flags=(), help="Limits of the pool of device buffers that steps use."
    )

    def __post_init__(self) -> None:
        check_options(self)
        if isinstance(self.offload, int) and self.offload < 0:
            raise UsageError(f"offload must be a number of layers, auto or none, not {self.offload}")
        if self.split is not None:
            parse_split(self.split)
            if self.offload not in ("auto", "none", 0):
                raise UsageError("split and offload exclude each other: name the cpu in the split")

    def config_of(self, config: ModelConfig) -> ModelConfig:
        """Return the configuration with activation_group_size, and without a prediction head that is not used. Raises
        UsageError if the model has one scale a row."""
        if config.prediction_head and self.speculate != "mtp":
            config = replace(config, prediction_head=False)
        if self.activation_group_size is None:
            return config
        if not config.activation_group_size:
            raise UsageError(
                f"activation_group_size {self.activation_group_size}: this model was trained with one scale a row"
            )
        return replace(config, activation_group_size=self.activation_group_size)

    def context_of(self, config: ModelConfig) -> int:
        """Return the tokens of the longest sequence. Raises UsageError if they are more than the model supports."""
        if self.context is not None and self.context > config.context:
            raise UsageError(f"context {self.context} is more than the model's {config.context} tokens")
        return self.context or min(config.context, DEFAULT_CONTEXT)
