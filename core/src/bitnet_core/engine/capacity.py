"""Sizes of an engine on a device, from its options: rows of a prompt step, concurrent requests, cache blocks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from bitnet_hal.device import DeviceInfo, DeviceType
from bitnet_hal.errors import UsageError
from bitnet_hal.kernels.catalogue import KV_BLOCK
from bitnet_hal.rounding import ceil_div

from bitnet_core.engine.kv_cache.cache import block_bytes, cache_bytes
from bitnet_core.engine.serving import DescribedDevice
from bitnet_core.engine.speculation.choice import verify_rows
from bitnet_core.model.config import ModelConfig
from bitnet_core.model.source import ModelSource
from bitnet_core.options.engine import MAX_PREFILL_CHUNK, EngineOptions
from bitnet_core.plan.memory import DeviceMemoryPlan, plan_memory
from bitnet_core.plan.scratch import scratch_row_bytes

log = logging.getLogger(__name__)

MAX_CHUNK = {DeviceType.CPU: 256, DeviceType.GPU: 1024}
"""Maximum rows of a prompt step by device type (512 for others). More rows make a CPU hardly faster, and their
activations take resident memory; a discrete GPU needs that many to be busy."""

_LARGE_GPU = 64 << 30
"""Bytes of memory from which a discrete GPU gets MAX_PREFILL_CHUNK rows: they fill the last wave of workgroups better,
and their activations take less than a hundredth of its memory."""

_MAX_SHARED = 1 << 30
"""Maximum bytes of a cache in memory that all programs share."""

_MIN_BLOCKS = 8
"""Minimum blocks of a cache without a given size: a lack of memory is then reported when the cache is allocated."""

_MORE_CHECKPOINTS = 16
"""Number of state checkpoints besides one per concurrent request: for earlier turns and along long prompts."""

_MOST_SPARES = 8
"""Maximum requests with draft tokens in a step, if their states must be copied: more rows gain little."""

_MIN_CPU_CHUNK, _ROWS_PER_THREAD = 64, 32  # with few threads, more rows gain little


class Concurrency(NamedTuple):
    """Numbers of concurrent requests, of state checkpoints, and of states that speculation copies for a step."""

    requests: int
    checkpoints: int = 0
    spares: int = 0

    @property
    def more_states(self) -> int:
        """Number of delta net states besides those of requests."""
        return self.checkpoints + self.spares


def concurrency(
    options: EngineOptions,
    source: ModelSource,
    device: DescribedDevice,
    sequences: int,
    chunk: int,
    part: ModelConfig | None = None,
) -> Concurrency:
    """Return how many requests run concurrently, from 1 to `sequences`, and the number of other delta net states.

    All states take at most half of the cache's memory, and fit the device's largest buffer. A request counts as three
    of them, its own and two checkpoints, or as four with speculation; there are at most _MORE_CHECKPOINTS more
    checkpoints than requests and at most _MOST_SPARES spares. part: the layers on this device if others have the rest,
    without speculation. Raises UsageError if the device cannot bind one state.
    """
    whole = options.config_of(source.config)
    config = part or whole
    if config.delta is None:
        return Concurrency(sequences)
    if not config.state_bytes:  # a part without delta nets
        return Concurrency(sequences, sequences + _MORE_CHECKPOINTS)
    rows = verify_rows(options, config, device.info, sequences, chunk) if config.n_layers == whole.n_layers else 0
    context = options.context_of(config)
    sizes = {"context": context, "sequences": sequences, "chunk": chunk, "verify_rows": rows}
    taken = plan_memory(source, config, device.info, **sizes).total
    budget = free_share(device, taken) if options.kv_cache_size is None else options.kv_cache_size
    largest = 4 * max(config.delta.state_sizes)
    if any(limit < largest for limit in _limits(device.info)):
        raise UsageError(
            f"a delta net's state of one request takes {largest:,} bytes, more than {device.info.request} can bind"
        )
    state_bytes = config.state_bytes if options.kv_cache_size is None else whole.state_bytes
    fit = min([budget // 2 // state_bytes, *(limit // largest for limit in _limits(device.info))])
    requests = min(sequences, max(fit // (4 if rows else 3), 1))
    if requests < sequences:
        log.info("delta net states take %d bytes per request: %d concurrent requests", state_bytes, requests)
    spares = max(0, min(fit - requests, requests, _MOST_SPARES)) if rows else 0
    return Concurrency(requests, min(max(fit - requests - spares, 0), requests + _MORE_CHECKPOINTS), spares)


def shared_concurrency(
    options: EngineOptions,
    source: ModelSource,
    placed: Sequence[tuple[DescribedDevice, int]],
    sequences: int,
    chunk: int,
) -> Concurrency:
    """Return the largest numbers for which every device has memory. placed: the devices with their numbers of layers,
    in the order of the layers."""
    config = options.config_of(source.config)
    fits: list[Concurrency] = []
    first = 0
    for device, layers in placed:
        fits.append(concurrency(options, source, device, sequences, chunk, config.part(first, layers)))
        first += layers
    requests = min(fit.requests for fit in fits)
    checkpoints = min(*(fit.checkpoints for fit in fits), requests + _MORE_CHECKPOINTS)
    return Concurrency(requests, checkpoints, min(fit.spares for fit in fits))


def cache_blocks(
    options: EngineOptions, config: ModelConfig, info: DeviceInfo, sequences: int, share: int, more_states: int = 0
) -> int:
    """Return the number of cache blocks besides the delta net states.

    They fit in kv_cache_size, or in `share` bytes if it is not set, and in the device's largest buffer, and are no more
    than `sequences` full sequences need. Raises UsageError if kv_cache_size holds no block.
    """
    size = block_bytes(config, options.kv_cache_type)
    states = cache_bytes(config, options.kv_cache_type, 0, sequences + more_states)
    need = cache_bytes(config, options.kv_cache_type, 1, 0)
    budget = max(share, _MIN_BLOCKS * need + states) if options.kv_cache_size is None else options.kv_cache_size
    most = sequences * ceil_div(options.context_of(config), KV_BLOCK)
    blocks = min(
        max(0, budget - states) // need if need else most,  # a device may have delta nets only
        most,
        *(limit // size for limit in _limits(info)),
    )
    if not blocks:
        kept = f", and the states of {sequences} requests {states:,}" if states else ""
        raise UsageError(f"a kv_cache_size of {budget:,} bytes is too small: one block takes {need:,}{kept}")
    return blocks


def memory_wanted(options: EngineOptions, source: ModelSource, device: DescribedDevice) -> DeviceMemoryPlan:
    """Return the memory of an engine on a device. Its cache has kv_cache_size; if that is not set, it holds one
    sequence of the full context, but takes no more than device_memory leaves."""
    config = options.config_of(source.config)
    chunk = widest_chunk(config, device.info, options.prefill_chunk, options.max_sequences)
    room = concurrency(options, source, device, options.max_sequences, chunk)
    blocks = ceil_div(options.context_of(config), KV_BLOCK)
    longest = cache_bytes(config, options.kv_cache_type, blocks, room.requests + room.more_states)
    plan = plan_memory(
        source,
        config,
        device.info,
        context=options.context_of(config),
        sequences=room.requests,
        chunk=chunk,
        verify_rows=verify_rows(options, config, device.info, room.requests, chunk),
        kv_cache=options.kv_cache_size or longest,
    )
    excess = 0 if options.device_memory is None else plan.total - options.device_memory
    return replace(plan, kv_cache=max(0, plan.kv_cache - max(0, excess)))


def free_share(device: DescribedDevice, taken: int) -> int:
    """Return the bytes of a cache without a given size, on a device where weights and scratch take `taken` bytes.

    A discrete GPU gives half of its remaining memory; if its driver does not report free memory, all of it counts as
    free. Other devices share their memory with all programs: a quarter of the free memory, up to 1 GiB.
    """
    info, free = device.info, device.free_memory()
    if info.type is DeviceType.GPU:
        known = info.total_memory if free < 0 else free
        return max(0, known - taken) // 2 if known else _MAX_SHARED
    return _MAX_SHARED if free < 0 else min(_MAX_SHARED, free // 4)


def share_rule(info: DeviceInfo) -> str:
    """Return the rule of `free_share` in words."""
    if info.type is DeviceType.GPU:
        return "half of the memory that weights and scratch leave free"
    return "a quarter of the free memory, up to 1 GiB"


def widest_chunk(config: ModelConfig, info: DeviceInfo, chunk: int, sequences: int) -> int:
    """Return the rows of a prompt step: at most `chunk`, and at most MAX_CHUNK or one row per sequence.

    A discrete GPU with much memory gets more rows, a CPU that reports few threads fewer, unless the rows are divided
    among experts. The device can bind their widest activations.
    """
    rows, threads = MAX_CHUNK.get(info.type, 512), info.extra.get("threads")
    if info.type is DeviceType.CPU and isinstance(threads, int) and not config.experts:
        rows = min(rows, max(_MIN_CPU_CHUNK, threads * _ROWS_PER_THREAD))
    if info.type is DeviceType.GPU and info.total_memory >= _LARGE_GPU:
        rows = MAX_PREFILL_CHUNK
    chunk = min(chunk, max(rows, sequences))
    if config.qk_norm_after_rope and info.max_grid[0]:
        chunk = min(chunk, info.max_grid[0] // config.n_heads)  # a workgroup for each row and head
    widest = max(scratch_row_bytes(config)[0].values())
    return max(1, min(chunk, *(limit // widest for limit in _limits(info)), chunk))


def _limits(info: DeviceInfo) -> list[int]:
    return [limit for limit in (info.max_binding, info.max_allocation) if limit]
