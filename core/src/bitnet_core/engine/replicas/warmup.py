"""Warm an engine up before its first request: kernels of every size are compiled, and their steps recorded.

A GPU's kernels are compiled for powers of two of rows, seconds for each that is not in the cache on disk, and the
clients of a burst would wait for all of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from bitnet_hal.device import DeviceType
from bitnet_hal.errors import GpuError

from bitnet_core.engine.engine import Engine
from bitnet_core.options.sampling import SamplingParams
from bitnet_core.progress import Progress

log = logging.getLogger(__name__)

_PROMPT, _TOKENS = 32, 16
"""Tokens of a prompt and of an answer: less than a block of the cache, so that no prefix is kept."""

_SLOW = 1.0
"""Seconds of one burst after which larger ones are left out: the device, not the compiler, takes that long."""


def warm_up(engine: Engine, sampling: Sequence[SamplingParams], progress: Progress) -> None:
    """Run bursts of 1, 2, 4, ... requests on a GPU, with each of these sampling parameters. The engine's counters and
    seconds do not change."""
    info = engine.device.info
    if info.type is not DeviceType.GPU or info.fake or engine.config.pooling:
        return
    scheduler = engine.scheduler
    counts, seconds = dict(scheduler.counts), dict(scheduler.seconds)
    sizes = [1 << power for power in range((engine.sequences - 1).bit_length())] + [engine.sequences]
    try:
        for at, size in enumerate(sizes):
            progress("compiling", at, len(sizes))
            took = [_burst(engine, size, one) for one in (*sampling, sampling[0])]
            if took[-1] > _SLOW:
                break
    except GpuError as error:
        log.warning("warming up %s failed: %s", info.request, error)
    progress("compiling", len(sizes), len(sizes))
    scheduler.counts.update(counts)
    scheduler.seconds.update(seconds)


def _burst(engine: Engine, size: int, sampling: SamplingParams) -> float:
    """Generate `size` texts together; returns the seconds that it took."""
    began = time.perf_counter()
    length = max(1, min(_PROMPT, engine.max_model_len - _TOKENS))
    for request in range(size):
        prompt = [(7 * request + token) % engine.config.tokens for token in range(length)]
        engine.add_request(prompt, sampling, max_tokens=min(_TOKENS, engine.max_model_len - 1))
    while engine.step():
        pass
    return time.perf_counter() - began
