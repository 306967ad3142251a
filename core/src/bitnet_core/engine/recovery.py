"""Recover from lack of device memory by freeing it step by step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from bitnet_hal.errors import OutOfMemoryError

log = logging.getLogger(__name__)


class Shrinkable(Protocol):
    """An engine whose methods free memory, or return False if there is nothing left to free."""

    def drop_scratch(self) -> bool: ...

    def shrink_cache(self) -> bool: ...

    def halve_chunk(self) -> bool: ...

    def fewer_sequences(self) -> bool: ...

    def offload_more(self) -> bool: ...


class OomRecovery:
    """Recovery for one action that is retried: each step is repeated until it frees nothing, then the next one is."""

    def __init__(self, target: Shrinkable) -> None:
        self._steps: list[tuple[str, Callable[[], bool], bool]] = [
            ("dropped scratch and pooled buffers", target.drop_scratch, False),
            ("evicted reusable prefixes and shrank the cache", target.shrink_cache, True),
            ("halved the prefill chunk", target.halve_chunk, True),
            ("halved the number of concurrent requests", target.fewer_sequences, True),
            ("moved layers to the CPU", target.offload_more, True),
        ]
        self._at = 0
        self._logged: set[int] = set()

    def recover(self, error: OutOfMemoryError) -> None:
        """Free memory so that the action can be retried. Raises OutOfMemoryError, with the sizes of `error`, if nothing
        is left to free."""
        while self._at < len(self._steps):
            text, give_up, repeatable = self._steps[self._at]
            done = give_up()
            if done and self._at not in self._logged:
                self._logged.add(self._at)
                log.warning("out of memory (%s bytes requested): %s", f"{error.requested:,}", text)
            if not done or not repeatable:
                self._at += 1
            if done:
                return
        free = f"{error.free:,}" if error.free >= 0 else "an unknown number of"
        raise OutOfMemoryError(
            f"{error.requested:,} bytes requested, {free} bytes free, and nothing is left to free",
            requested=error.requested,
            free=error.free,
            backend=error.backend,
            device=error.device,
            operation=error.operation,
            code=error.code,
            hint="Use a smaller --context or --kv-cache-size, fewer --max-sequences, --kv-cache-type int8, "
            "a larger --device-memory if you limit it, or another --device",
        ) from error
