"""Warm-up of an engine: compile the kernels of all row counts and record their steps before the first requests.

A GPU's kernels are compiled for each power of two of rows. A compilation takes about a second unless it is in the cache
on disk, and the first concurrent requests would wait for all of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence

from bitnet_hal.device import DeviceType

from bitnet_core.engine.engine import Engine
from bitnet_core.options.sampling import SamplingParams
from bitnet_core.progress import Progress

log = logging.getLogger(__name__)

_PROMPT, _TOKENS = 32, 4
"""Tokens of a prompt and of an answer; they fill no cache block, so no prefix is cached."""

_SLOW = 1.0
"""Seconds of a burst after which larger ones are skipped: its time is that of the device, not of the compiler."""

_LONG = 0.05
"""Seconds of a prompt step after which larger ones are not recorded: the device takes longer than the host's launches,
20 ms for 30 layers."""


def warm_up(engine: Engine, sampling: Sequence[SamplingParams], progress: Progress) -> Iterator[None]:
    """Run bursts of 1, 2, 4, ... requests on a GPU, with each of these sampling parameters, and prompt steps of all
    usual row counts, the smallest first; yields after each.

    The engine must have no other requests meanwhile. Its counters and seconds are left unchanged.
    """
    info = engine.device.info
    if info.type is not DeviceType.GPU or info.fake or engine.config.pooling:
        return
    sizes = [1 << power for power in range((engine.sequences - 1).bit_length())] + [engine.sequences]
    prompts = _prompts(engine)
    try:
        _compile_ahead(engine, sizes)
        for at, size in enumerate(sizes):
            progress("compiling", at, len(sizes))
            for rows in prompts:
                yield
                if rows >= size * _PROMPT:
                    break
            for one in (*sampling, sampling[0]):  # the second burst of a kind records what the first one compiled
                took = _burst(engine, size, one)
                yield
            if took > _SLOW:
                return
        for _ in prompts:
            yield
    except Exception as error:  # noqa: BLE001 - requests work without a warm-up
        log.warning("warming up %s failed: %s", info.request, error)
        engine.fail_all(error)


def _compile_ahead(engine: Engine, sizes: Sequence[int]) -> None:
    """Start to compile the kernels of all these steps at once, as far as the device can."""
    if len(engine.worker.parts) == 1:
        with engine.lock:
            runner = engine.runner()
            runner.compile_ahead(sizes)
            runner.compile_prompts_ahead(engine.scheduler.chunk, sizes)


def _prompts(engine: Engine) -> Iterator[int]:
    """Record prompt steps, and yield their numbers of rows."""
    if len(engine.worker.parts) > 1:
        return
    for rows in engine.runner().prompt_sizes(engine.scheduler.chunk):
        with engine.lock:
            chunk = engine.scheduler.chunk
            if rows > chunk:  # recovery from lack of memory has reduced it
                return
            seconds = engine.runner().record_prompt(rows, chunk)
        yield rows
        if seconds > _LONG:
            return


def _burst(engine: Engine, size: int, sampling: SamplingParams) -> float:
    """Run `size` concurrent requests; returns the seconds that they took."""
    scheduler = engine.scheduler
    counts, seconds = dict(scheduler.counts), dict(scheduler.seconds)
    began = time.perf_counter()
    length = max(1, min(_PROMPT, engine.max_model_len - _TOKENS))
    for request in range(size):
        prompt = [(7 * request + token) % engine.config.tokens for token in range(length)]
        engine.add_request(prompt, sampling, max_tokens=min(_TOKENS, engine.max_model_len - 1))
    while engine.step():
        pass
    scheduler.counts.update(counts)
    scheduler.seconds.update(seconds)
    return time.perf_counter() - began
