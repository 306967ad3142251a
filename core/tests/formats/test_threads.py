"""Threads that read model files."""

from __future__ import annotations

import threading

import pytest
from bitnet_core.formats import threads


def test_a_pool_s_threads_start_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many parts are read in parallel, but in sequence by a thread that already reads one of many tensors."""
    monkeypatch.setattr("os.cpu_count", lambda: 4)

    def names(_tensor: int) -> set[str]:
        both = threading.Barrier(2, timeout=10)

        def take(_part: int) -> str:
            both.wait()
            return threading.current_thread().name

        def alone(_part: int) -> str:
            return threading.current_thread().name

        return set(threads.in_threads(alone if in_pool() else take, range(2)))

    def in_pool() -> bool:
        return threading.current_thread() is not threading.main_thread()

    assert len(names(0)) == 2
    with threads.reader_pool() as pool:
        assert [len(found) for found in pool.map(names, range(4))] == [1, 1, 1, 1]
