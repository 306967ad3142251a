"""A pool of device buffers: freed buffers are kept for later allocations of the same size."""

from __future__ import annotations

from dataclasses import dataclass

from bitnet_hal.device import Buffer, Device, MemoryKind
from bitnet_hal.kernels.catalogue import ceil_div

from bitnet_core.options.engine import MemoryPoolConfig

_GRANULE = 256
"""Sizes are rounded up to a multiple of this many bytes, so that allocations of nearly equal size share buffers."""


def pooled(nbytes: int) -> int:
    """Return the bytes of the buffer that a pool allocates for `nbytes`."""
    return ceil_div(nbytes, _GRANULE) * _GRANULE


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Counters of a pool. leaked: number of buffers in use when the pool was closed."""

    hits: int
    misses: int
    in_use_bytes: int
    in_use_buffers: int
    peak_bytes: int
    cached_bytes: int
    cached_buffers: int
    leaked: int


class MemoryPool:
    """A pool that reuses buffers by size; their contents are undefined. moved_bytes: bytes that the pool's users have
    copied between host and device."""

    def __init__(self, device: Device, config: MemoryPoolConfig | None = None) -> None:
        self._device = device
        self.config = config or MemoryPoolConfig()
        free = device.free_memory()
        self._max_bytes = self.config.max_cached_bytes if free < 0 else min(self.config.max_cached_bytes, free // 2)
        self._cached: dict[tuple[MemoryKind, int], list[Buffer]] = {}
        self._in_use: dict[int, Buffer] = {}  # by id
        self._hits = 0
        self._misses = 0
        self._in_use_bytes = 0
        self._peak_bytes = 0
        self._cached_bytes = 0
        self._leaked = 0
        self.moved_bytes = 0

    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        """Return a buffer of at least `nbytes` > 0 bytes."""
        size = pooled(nbytes)
        cached = self._cached.get((kind, size))
        if cached:
            buffer = cached.pop()
            self._cached_bytes -= size
            self._hits += 1
        else:
            buffer = self._device.alloc(size, kind)
            self._misses += 1
        self._in_use[id(buffer)] = buffer
        self._in_use_bytes += size
        self._peak_bytes = max(self._peak_bytes, self._in_use_bytes)
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Take back a buffer of `alloc`. Raises ValueError for any other buffer."""
        if self._in_use.pop(id(buffer), None) is None:
            raise ValueError("the buffer was not allocated by this pool, or is already free")
        size = buffer.nbytes
        self._in_use_bytes -= size
        if self._cached_bytes + size > self._max_bytes:
            self._device.free(buffer)
        else:
            self._cached.setdefault((buffer.kind, size), []).append(buffer)
            self._cached_bytes += size

    def trim(self) -> int:
        """Free all cached buffers on the device; returns their bytes."""
        freed = self._cached_bytes
        while self._cached:
            _, buffers = self._cached.popitem()
            for buffer in buffers:
                self._device.free(buffer)
        self._cached_bytes = 0
        return freed

    def stats(self) -> MemoryStats:
        """Return the counters since the pool was created."""
        return MemoryStats(
            hits=self._hits,
            misses=self._misses,
            in_use_bytes=self._in_use_bytes,
            in_use_buffers=len(self._in_use),
            peak_bytes=self._peak_bytes,
            cached_bytes=self._cached_bytes,
            cached_buffers=sum(len(buffers) for buffers in self._cached.values()),
            leaked=self._leaked,
        )

    def close(self) -> None:
        """Free cached buffers, and count buffers still in use as leaked."""
        self.trim()
        self._leaked = len(self._in_use)
