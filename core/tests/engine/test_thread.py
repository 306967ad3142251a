"""The thread that owns a model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from bitnet_core.engine import thread as thread_module
from bitnet_core.engine.thread import EngineThread
from bitnet_core.errors import ModelError
from bitnet_hal.errors import BitnetError, DeviceLostError

Make = Callable[..., Any]


class Owned:
    """An engine as a driver wants it; `thread` made it, `closed_in` closed it."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.thread = engine, threading.current_thread()
        self.closed_in: threading.Thread | None = None

    def close(self) -> None:
        self.closed_in = threading.current_thread()


@contextmanager
def driven(load: Callable[[], Any]) -> Iterator[tuple[EngineThread[Any], list[Any]]]:
    outputs: list[Any] = []
    thread: EngineThread[Any] = EngineThread(load, outputs.extend)
    thread.start()
    try:
        yield thread, outputs
    finally:
        thread.close(10)
        assert not thread.alive


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_texts_are_made_without_anybody_stepping(make_engine: Make, run_all: Callable[..., None]) -> None:
    alone = make_engine("silu")
    expected = [alone.add_request([token], max_tokens=30) for token in (1, 2)]
    run_all(alone)
    with driven(lambda: Owned(make_engine("silu"))) as (thread, outputs):
        futures = [thread.call(lambda owned, t=t: owned.engine.add_request([t], max_tokens=30)) for t in (1, 2)]
        sequences = [future.result(10) for future in futures]
        until(lambda: all(request.finish_reason for request in sequences))
        assert thread.model is not None
        assert thread.model.thread is thread._thread
    assert [request.generated for request in sequences] == [request.generated for request in expected]
    told = {request: [t for u in outputs if u.request is request for t in u.tokens] for request in sequences}
    assert [told[request] for request in sequences] == [request.generated for request in sequences]
    assert thread.model.closed_in is thread._thread


def test_errors_of_commands_belong_to_who_asked(make_engine: Make) -> None:
    with driven(lambda: Owned(make_engine("silu"))) as (thread, _):
        with pytest.raises(ZeroDivisionError):
            thread.call(lambda _: 1 / 0).result(10)
        assert thread.call(lambda owned: owned.engine.max_model_len).result(10) == 256
    with pytest.raises(BitnetError, match="closed"):
        thread.call(lambda _: None)


def test_closing_ends_what_is_under_way(make_engine: Make) -> None:
    with driven(lambda: Owned(make_engine("silu", stream_interval=1e-9))) as (thread, outputs):
        request = thread.call(lambda owned: owned.engine.add_request([1], max_tokens=200)).result(10)
        until(lambda: request.generated_tokens > 3)
    assert request.finish_reason == "error"
    assert outputs[-1].request is request


def test_what_stands_in_the_way_of_loading_is_told() -> None:
    def load() -> Any:
        raise ModelError("no such file")

    with driven(load) as (thread, _):
        until(lambda: thread.error is not None)
        until(lambda: not thread.alive)
        with pytest.raises(BitnetError):
            thread.call(lambda _: None)


def test_a_lost_device_fails_the_texts_and_is_remembered(faulty: Any, make_engine: Make) -> None:
    device = faulty()

    def lose(*_: Any) -> None:
        raise DeviceLostError("gone", backend="numpy")

    with driven(lambda: Owned(make_engine("silu", device=device))) as (thread, _):
        device.before["replay"] = lose
        request = thread.call(lambda owned: owned.engine.add_request([1], max_tokens=9)).result(10)
        until(lambda: request.finish_reason == "error")
        until(lambda: isinstance(thread.error, DeviceLostError))
        device.before.clear()


def test_idle_times_are_used_until_nothing_is_left(make_engine: Make) -> None:
    parts = iter(range(3))
    done: list[int] = []

    def part() -> bool:
        if (number := next(parts, None)) is not None:
            done.append(number)
        return number is not None

    thread: EngineThread[Any] = EngineThread(lambda: Owned(make_engine("silu")), lambda outputs: None)
    thread.idle = part
    thread.start()
    try:
        until(lambda: thread.idle is None)
        assert done == [0, 1, 2]
        assert thread.call(lambda owned: owned.engine.max_model_len).result(10) > 0
    finally:
        thread.close(10)


def test_what_is_left_for_idle_times_waits_for_a_pause(make_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that follow others at once would wait for it."""
    monkeypatch.setattr(thread_module, "_QUIET", 0.3)
    done: list[float] = []
    thread: EngineThread[Any] = EngineThread(lambda: Owned(make_engine("silu")), lambda outputs: None)

    def begin(_: Any) -> None:
        thread.idle = lambda: bool(done.append(time.monotonic()))

    thread.start()
    try:
        thread.call(begin).result(10)
        for _ in range(4):
            time.sleep(0.1)
            worked = time.monotonic()
            thread.call(lambda owned: None).result(10)
        assert not done
        until(lambda: thread.idle is None)
        assert done[0] - worked >= 0.3
    finally:
        thread.close(10)
