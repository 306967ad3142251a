"""Threads that read a model file. Threads of a pool start no further threads, because these would compete for memory
bandwidth and could deadlock."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

MOST_THREADS = 12
"""Maximum number of threads; more would wait for memory bandwidth."""

T = TypeVar("T")
S = TypeVar("S")

_this = threading.local()


def reader_pool() -> ThreadPoolExecutor:
    """Return a pool of threads, each of which reads one tensor at a time."""
    return ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1), initializer=_become_reader)


def _become_reader() -> None:
    _this.reads = True


def in_threads(take: Callable[[S], T], parts: Sequence[S]) -> list[T]:
    """Return `take` of each part of one tensor, computed in threads; numpy releases the interpreter's lock."""
    if len(parts) == 1 or hasattr(_this, "reads"):
        return [take(part) for part in parts]
    with reader_pool() as pool:
        return list(pool.map(take, parts))
