"""Threads that read a model file. Those of a pool start no others: they would wait for memory, and for one another."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

MOST_THREADS = 8
"""More are waiting for memory."""

T = TypeVar("T")
S = TypeVar("S")

_this = threading.local()


def reader_pool() -> ThreadPoolExecutor:
    """Threads that read a tensor each."""
    return ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1), initializer=_become_reader)


def _become_reader() -> None:
    _this.reads = True


def in_threads(take: Callable[[S], T], parts: Sequence[S]) -> list[T]:
    """What `take` gives for each part of one tensor; numpy works without the interpreter's lock."""
    if len(parts) == 1 or hasattr(_this, "reads"):
        return [take(part) for part in parts]
    with reader_pool() as pool:
        return list(pool.map(take, parts))
