"""Reuse of device buffers."""

from __future__ import annotations

import pytest
from bitnet_core.options.engine import MemoryPoolConfig
from bitnet_core.plan.pool import MemoryPool
from bitnet_hal.reference.device import NumpyDevice


@pytest.fixture
def device() -> NumpyDevice:
    return NumpyDevice()


def test_a_buffer_given_back_serves_the_next_request_of_its_size(device: NumpyDevice) -> None:
    pool = MemoryPool(device)
    first = pool.alloc(1000)
    pool.free(first)
    assert pool.alloc(900) is first
    assert pool.alloc(1000) is not first
    stats = pool.stats()
    assert (stats.hits, stats.misses, stats.in_use_buffers) == (1, 2, 2)
    assert stats.in_use_bytes == stats.peak_bytes == 2048


def test_limit_of_cached_bytes(device: NumpyDevice) -> None:
    pool = MemoryPool(device, MemoryPoolConfig(max_cached_bytes=600))
    buffers = [pool.alloc(256) for _ in range(3)]
    large = pool.alloc(2048)
    for buffer in [*buffers, large]:
        pool.free(buffer)
    assert (pool.stats().cached_buffers, pool.stats().cached_bytes) == (2, 512)
    assert len(device._buffers) == 2


def test_trim_frees_everything_idle(device: NumpyDevice) -> None:
    pool = MemoryPool(device)
    pool.free(pool.alloc(300))
    assert pool.trim() == 512
    assert pool.trim() == 0
    assert not device._buffers


def test_what_is_not_given_back_is_a_leak(device: NumpyDevice) -> None:
    pool = MemoryPool(device)
    pool.alloc(10)
    pool.free(pool.alloc(20))
    pool.close()
    assert pool.stats().leaked == 1


def test_a_foreign_or_freed_buffer_is_refused(device: NumpyDevice) -> None:
    pool = MemoryPool(device)
    buffer = pool.alloc(10)
    pool.free(buffer)
    for wrong in (buffer, device.alloc(10)):
        with pytest.raises(ValueError, match="not allocated by this pool"):
            pool.free(wrong)
