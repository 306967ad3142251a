"""Reuse of device buffers: a buffer given back is kept for the next request of its size."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from bitnet_hal.device import Buffer, Device, MemoryKind, View
from bitnet_hal.rounding import round_up

_GRANULE = 256
"""Sizes are rounded up to this, so that nearly equal requests share buffers."""


@dataclass(frozen=True, slots=True)
class MemoryPoolConfig:
    """Limits of a pool. max_cached_bytes is also held to half of the device's free memory where that is known."""

    max_cached_bytes: int = 2 << 30
    max_cached_buffers: int = 1000
    track: bool = True  # keep per-buffer records, for `stats().leaked`
    cleanup_interval: float = 30.0  # seconds after which an unused buffer goes back to the device


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """What a pool did. leaked counts buffers still out when the pool was closed."""

    hits: int
    misses: int
    in_use_bytes: int
    in_use_buffers: int
    peak_bytes: int
    cached_bytes: int
    cached_buffers: int
    leaked: int

    @property
    def hit_rate(self) -> float:
        """Share of requests served without the device."""
        return self.hits / max(1, self.hits + self.misses)


class MemoryPool:
    """Size-keyed reuse over `Device.alloc` and `Device.free`; buffers from it may hold old data. moved_bytes: what was
    copied to and from them."""

    def __init__(
        self, device: Device, config: MemoryPoolConfig | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._device, self._clock = device, clock
        self.config = config or MemoryPoolConfig()
        free = device.free_memory()
        self._max_bytes = self.config.max_cached_bytes if free < 0 else min(self.config.max_cached_bytes, free // 2)
        self._cached: dict[tuple[MemoryKind, int], list[tuple[float, Buffer]]] = {}
        self._out: dict[int, Buffer] = {}
        self._hits = self._misses = self._in_use = self._peak = self._count = self._cached_bytes = self._leaked = 0
        self._next_cleanup = clock() + self.config.cleanup_interval
        self.moved_bytes = 0

    def upload(self, view: View, source: memoryview) -> None:
        """`Device.upload`, counted."""
        self.moved_bytes += view.nbytes
        self._device.upload(view, source)

    def download(self, view: View, target: memoryview) -> None:
        """`Device.download`, counted."""
        self.moved_bytes += view.nbytes
        self._device.download(view, target)

    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        """A buffer of at least `nbytes` > 0, its content undefined."""
        size = round_up(nbytes, _GRANULE)
        self._clean()
        kept = self._cached.get((kind, size))
        if kept:
            buffer = kept.pop()[1]
            self._cached_bytes -= size
            self._hits += 1
        else:
            buffer = self._device.alloc(size, kind)
            self._misses += 1
        self._in_use += size
        self._count += 1
        self._peak = max(self._peak, self._in_use)
        if self.config.track:
            self._out[id(buffer)] = buffer
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Give back a buffer of `alloc`; ValueError for any other one, where tracking is on."""
        if self.config.track and self._out.pop(id(buffer), None) is None:
            raise ValueError("the buffer is not out of this pool")
        size = buffer.nbytes
        self._in_use -= size
        self._count -= 1
        cached = sum(len(kept) for kept in self._cached.values())
        if self._cached_bytes + size > self._max_bytes or cached >= self.config.max_cached_buffers:
            self._device.free(buffer)
        else:
            self._cached.setdefault((buffer.kind, size), []).append((self._clock(), buffer))
            self._cached_bytes += size
        self._clean()

    def trim(self, older_than: float = 0.0) -> int:
        """Give cached buffers that were idle for `older_than` seconds back to the device; returns their bytes."""
        limit, freed = self._clock() - older_than, 0
        for key, kept in list(self._cached.items()):
            stale = [buffer for since, buffer in kept if since <= limit]
            self._cached[key] = [(since, buffer) for since, buffer in kept if since > limit]
            for buffer in stale:
                self._device.free(buffer)
                freed += buffer.nbytes
        self._cached_bytes -= freed
        return freed

    def stats(self) -> MemoryStats:
        """Counters since the pool was made."""
        return MemoryStats(
            hits=self._hits,
            misses=self._misses,
            in_use_bytes=self._in_use,
            in_use_buffers=self._count,
            peak_bytes=self._peak,
            cached_bytes=self._cached_bytes,
            cached_buffers=sum(len(kept) for kept in self._cached.values()),
            leaked=self._leaked,
        )

    def close(self) -> None:
        """Free what is cached and count what was never given back as leaked."""
        self.trim()
        self._leaked = self._count

    def _clean(self) -> None:
        if self._clock() >= self._next_cleanup:
            self._next_cleanup = self._clock() + self.config.cleanup_interval
            self.trim(self.config.cleanup_interval)
