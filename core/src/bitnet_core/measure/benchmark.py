"""Benchmark a model on a device: speed, memory, and the share of the read bandwidth that decoding uses."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from bitnet_hal.errors import UsageError
from bitnet_hal.kernels.catalogue import KV_BLOCK, KV_TYPES, kv_row_bytes
from bitnet_hal.rounding import ceil_div

from bitnet_core.engine.engine import Engine
from bitnet_core.engine.serving import ServingEngine
from bitnet_core.measure.bandwidth import read_bandwidth
from bitnet_core.measure.host_memory import host_memory
from bitnet_core.model.config import ModelConfig
from bitnet_core.plan.weight_sizes import layer_bytes
from bitnet_core.progress import Progress

if TYPE_CHECKING:
    from bitnet_core.api import Model

_PROMPT_TOKENS = 512
_WARM_UPS = 2
"""Number of unmeasured runs: the first one compiles kernels, the second one records repeated steps."""


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Medians over the runs. Speeds are tokens per second, sizes bytes, times seconds."""

    model: str
    device: str
    device_name: str
    compute_path: str
    activation_group_size: int  # columns per activation scale; 0: the whole row
    prompt_tokens: int
    generated_tokens: int
    sequences: int  # concurrent requests; speeds are their sum
    repeat: int
    load_seconds: float
    prefill_speed: float
    decode_speed: float
    decode_speeds: tuple[float, ...]  # of every run
    host_memory: int  # resident, after the runs, with the pages of a mapped model file
    host_total: int  # of the machine
    weight_memory: int  # bytes on the device, like the next three
    wrapped_memory: int  # weights that the device reads from host memory
    kv_memory: int
    scratch_memory: int
    bytes_per_token: int  # read to decode one token: weights, head, and the cache at the mean position
    read_bandwidth: float  # of the device, in bytes per second, measured in the same run
    layers: dict[str, int]  # by device

    @property
    def bandwidth_fraction(self) -> float | None:
        """Share of the read bandwidth that decoding uses, 1 at the hardware's limit; None if several devices have
        layers."""
        return self.decode_speed * self.bytes_per_token / self.read_bandwidth if len(self.layers) == 1 else None

    def document(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return {**asdict(self), "bandwidth_fraction": self.bandwidth_fraction}


@dataclass(frozen=True, slots=True)
class Run:
    """A measured run. seconds: total. prefill_seconds: until every request has its first token. decode_seconds,
    decoded: duration and tokens of the steps in which all requests were decoding."""

    seconds: float
    prefill_seconds: float
    decode_seconds: float
    decoded: int


def measure(
    model: Model,
    load_seconds: float,
    prompt_tokens: int | None,
    max_tokens: int,
    repeat: int,
    sequences: int = 1,
    progress: Progress | None = None,
) -> BenchResult:
    """Prefill and decode `sequences` concurrent requests, `repeat` times after a warm-up, greedily and past the model's
    end tokens.

    prompt_tokens: None for 512, or fewer if the context is shorter. Raises UsageError if the requests do not fit the
    cache.
    """
    engine = model.engine
    prompt_tokens = prompt_length(engine, prompt_tokens, max_tokens, sequences)
    with without_speculation(engine):
        runs = measured_runs(engine, sequences, prompt_tokens, max_tokens, repeat, progress)
    speeds = [run.decoded / run.decode_seconds for run in runs]
    middle = prompt_tokens + max_tokens // 2
    memory = engine.memory()
    plans = engine.memory_plans().values()
    host = host_memory()
    return BenchResult(
        model=model.name,
        device=model.device.info.request,
        device_name=model.device.info.name,
        compute_path=model.summary.compute_path,
        activation_group_size=engine.config.activation_group_size,
        prompt_tokens=prompt_tokens,
        generated_tokens=max_tokens,
        sequences=sequences,
        repeat=repeat,
        load_seconds=load_seconds,
        prefill_speed=statistics.median(sequences * prompt_tokens / run.prefill_seconds for run in runs),
        decode_speed=statistics.median(speeds),
        decode_speeds=tuple(speeds),
        host_memory=int(host["resident_bytes"]),
        host_total=int(host["total_bytes"]),
        weight_memory=int(memory["weights_bytes"]),
        wrapped_memory=int(memory["wrapped_weights_bytes"]),
        kv_memory=sum(plan.kv_cache for plan in plans),
        scratch_memory=sum(plan.scratch for plan in plans),
        bytes_per_token=bytes_per_token(
            model.config, engine.weights.head_bytes, engine.options.kv_cache_type, middle, sequences
        ),
        read_bandwidth=read_bandwidth(model.device, progress),
        layers=engine.layers_by_device,
    )


def prompt_length(engine: ServingEngine, wanted: int | None, max_tokens: int, sequences: int) -> int:
    """Return the length of the prompts. Raises UsageError if they do not fit the context or the cache."""
    tokens = max(1, min(_PROMPT_TOKENS, engine.max_model_len - max_tokens)) if wanted is None else wanted
    if tokens + max_tokens > engine.max_model_len:
        raise UsageError(f"{tokens} + {max_tokens} tokens do not fit the context of {engine.max_model_len}")
    blocks = sequences * ceil_div(tokens + max_tokens, KV_BLOCK)
    if sequences > engine.sequences or blocks > engine.memory()["cache_blocks"]:
        raise UsageError(f"{sequences} requests of {tokens} + {max_tokens} tokens do not fit the cache")
    return tokens


@contextmanager
def without_speculation(engine: Engine) -> Iterator[None]:
    """Disable speculation within the context, because its gain depends on the text."""
    speculative = engine.scheduler.speculative
    drafter, rows = speculative.drafter, speculative.rows
    speculative.use(None, 0)
    try:
        yield
    finally:
        speculative.use(drafter, rows)


def measured_runs(
    engine: Engine,
    sequences: int,
    prompt_tokens: int,
    max_tokens: int,
    repeat: int,
    progress: Progress | None = None,
    warm_ups: int = _WARM_UPS,
) -> list[Run]:
    """Return `repeat` runs after the warm-ups."""
    rng = np.random.default_rng()  # unseeded, so that no prompt of an earlier measurement is in the prefix cache
    runs = []
    for done in range(repeat + warm_ups):
        if progress:
            progress("measuring speed", done, repeat + warm_ups)
        # new prompts for every run: cached prefixes would shorten the prefill
        prompts = rng.integers(0, engine.config.vocab, (sequences, prompt_tokens)).tolist()
        gc.collect()  # now rather than during the run
        runs.append(_run(engine, prompts, max_tokens))
    return runs[warm_ups:]


def _run(engine: Engine, prompts: list[list[int]], max_tokens: int) -> Run:
    requests = [engine.add_request(prompt, max_tokens=max_tokens) for prompt in prompts]
    started = time.perf_counter()
    prefill = decode = 0.0
    decoded = 0
    while any(request.finish_reason is None for request in requests):
        prefilling = any(not request.generated_tokens for request in requests)
        all_running = all(request.finish_reason is None for request in requests)
        began = time.perf_counter()
        outputs = engine.step()
        seconds = time.perf_counter() - began
        if prefilling:
            prefill += seconds
        elif all_running:
            decode += seconds
            decoded += sum(len(output.tokens) for output in outputs)
    return Run(time.perf_counter() - started, prefill, decode, decoded)


def bytes_per_token(config: ModelConfig, head_bytes: int, kv_cache_type: str, position: int, sequences: int = 1) -> int:
    """Return the bytes read to decode one token at `position`: keys and values of all positions before it, delta net
    states, and 1 / sequences of every ternary matrix and of the head. Of the experts it counts the maximum that these
    sequences use."""
    share = min(1.0, config.experts.used * sequences / config.experts.count) if config.experts else 1.0
    layers = layer_bytes(config, share)
    kv = 2 * config.n_kv_heads * kv_row_bytes(KV_TYPES.index(kv_cache_type), config.head_dim) * position
    return config.attention_layers * kv + config.state_bytes + (layers + head_bytes) // sequences
