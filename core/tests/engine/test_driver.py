"""The thread that owns a model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from bitnet_core.engine.driver import Driver
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
def driven(load: Callable[[], Any]) -> Iterator[tuple[Driver[Any], list[Any]]]:
    updates: list[Any] = []
    driver: Driver[Any] = Driver(load, updates.extend)
    driver.start()
    try:
        yield driver, updates
    finally:
        driver.close(10)
        assert not driver.alive


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_texts_are_made_without_anybody_stepping(make_engine: Make, run_all: Callable[..., None]) -> None:
    alone = make_engine("silu")
    expected = [alone.add([token], max_tokens=30) for token in (1, 2)]
    run_all(alone)
    with driven(lambda: Owned(make_engine("silu"))) as (driver, updates):
        futures = [driver.call(lambda owned, t=t: owned.engine.add([t], max_tokens=30)) for t in (1, 2)]
        sequences = [future.result(10) for future in futures]
        until(lambda: all(sequence.finish_reason for sequence in sequences))
        assert driver.model is not None
        assert driver.model.thread is driver._thread
    assert [sequence.generated for sequence in sequences] == [sequence.generated for sequence in expected]
    told = {sequence: [t for u in updates if u.sequence is sequence for t in u.tokens] for sequence in sequences}
    assert [told[sequence] for sequence in sequences] == [sequence.generated for sequence in sequences]
    assert driver.model.closed_in is driver._thread


def test_errors_of_commands_belong_to_who_asked(make_engine: Make) -> None:
    with driven(lambda: Owned(make_engine("silu"))) as (driver, _):
        with pytest.raises(ZeroDivisionError):
            driver.call(lambda _: 1 / 0).result(10)
        assert driver.call(lambda owned: owned.engine.limit).result(10) == 256
    with pytest.raises(BitnetError, match="closed"):
        driver.call(lambda _: None)


def test_closing_ends_what_is_under_way(make_engine: Make) -> None:
    with driven(lambda: Owned(make_engine("silu", burst_seconds=1e-9))) as (driver, updates):
        sequence = driver.call(lambda owned: owned.engine.add([1], max_tokens=200)).result(10)
        until(lambda: sequence.generated_tokens > 3)
    assert sequence.finish_reason == "error"
    assert updates[-1].sequence is sequence


def test_what_stands_in_the_way_of_loading_is_told() -> None:
    def load() -> Any:
        raise ModelError("no such file")

    with driven(load) as (driver, _):
        until(lambda: driver.error is not None)
        until(lambda: not driver.alive)
        with pytest.raises(BitnetError):
            driver.call(lambda _: None)


def test_a_lost_device_fails_the_texts_and_is_remembered(faulty: Any, make_engine: Make) -> None:
    device = faulty()

    def lose(*_: Any) -> None:
        raise DeviceLostError("gone", backend="numpy")

    with driven(lambda: Owned(make_engine("silu", device=device))) as (driver, _):
        device.before["replay"] = lose
        sequence = driver.call(lambda owned: owned.engine.add([1], max_tokens=9)).result(10)
        until(lambda: sequence.finish_reason == "error")
        until(lambda: isinstance(driver.error, DeviceLostError))
        device.before.clear()
