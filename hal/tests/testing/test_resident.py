"""The memory measurement behind the kit's leak rules."""

from __future__ import annotations

import ctypes
import platform

import pytest
from bitnet_hal.testing.resident import resident

BLOCK = 100_000
COUNT = 1000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="looks at glibc's allocator")
def test_a_leak_out_of_freed_memory_is_seen() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]

    def used(count: int) -> list[int]:
        blocks = [libc.malloc(BLOCK) for _ in range(count)]
        for block in blocks:
            ctypes.memset(block, 1, BLOCK)
        return blocks

    *freed, last = used(COUNT + 1)  # the last block keeps the heap from shrinking by itself
    for block in freed:
        libc.free(block)
    before = resident()
    leaked = used(COUNT)
    grown = resident() - before
    for block in (*leaked, last):
        libc.free(block)
    assert grown > 0.8 * BLOCK * COUNT
