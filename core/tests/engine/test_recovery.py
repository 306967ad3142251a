"""Out of memory, step by step, and a device that goes away in the middle of a text."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
from bitnet_core.engine.error_log import ErrorLog
from bitnet_hal.errors import DeviceLostError, OutOfMemoryError

Make = Callable[..., Any]
Run = Callable[[Any], None]


class Budget:
    """Makes `alloc` fail beyond a number of bytes in use, which can be changed at any time."""

    def __init__(self, device: Any) -> None:
        self.device, self.limit = device, 1 << 40
        device.before["alloc"] = self.check

    @property
    def used(self) -> int:
        return sum(buffer.nbytes for buffer in self.device.inner._buffers.values() if buffer.kind.value == "device")

    def check(self, nbytes: int, *_: Any) -> None:
        if self.used + nbytes > self.limit:
            raise OutOfMemoryError("full", requested=nbytes, free=max(0, self.limit - self.used), backend="numpy")


def held(weights: Any) -> int:
    """Bytes of the device's memory that weights are in."""
    return sum(buffer.nbytes for buffer in weights._buffers if buffer.kind.value == "device")


@pytest.fixture
def text(make_engine: Make, run_all: Run, tiny: Any) -> list[int]:
    """Return the text of an engine without faults."""
    engine = make_engine("silu")
    request = engine.add_request(tiny.PROMPT[:100], max_tokens=40)
    run_all(engine)
    return list(request.generated)


def lose_at(device: Any, method: str, call: int) -> None:
    """Let the device fail for good at the given call of a method."""

    def check(*_: Any, **__: Any) -> None:
        if device.calls[method] >= call:
            raise DeviceLostError("the device fell off the bus", backend="numpy", operation=method)

    device.before[method] = check


@pytest.mark.parametrize(
    ("method", "call"),
    [("upload", 3), ("alloc", 20), ("launch", 30), ("record", 1), ("replay", 1), ("replay", 20), ("download", 5)],
)
def test_a_lost_device_does_not_change_the_text(
    faulty: Any, make_engine: Make, run_all: Run, tiny: Any, text: list[int], method: str, call: int
) -> None:
    first, second = faulty(), faulty(index=1)
    lose_at(first, method, call)
    asked: list[str] = []

    def reopen(error: DeviceLostError) -> Any:
        asked.append(error.operation)
        return second

    engine = make_engine("silu", device=first, reopen=reopen)
    request = engine.add_request(tiny.PROMPT[:100], max_tokens=40)
    run_all(engine)
    assert asked == [method]
    assert engine.device is second
    assert request.generated == text
    assert engine.kernel_launches["rms_norm"] >= 40


def test_two_devices_may_be_lost(faulty: Any, make_engine: Make, run_all: Run, tiny: Any, text: list[int]) -> None:
    first, *others = faulty(), faulty(index=1), faulty(index=2)
    lose_at(first, "replay", 10)
    lose_at(others[0], "launch", 40)
    engine = make_engine("silu", device=first, reopen=lambda _: others.pop(0))
    request = engine.add_request(tiny.PROMPT[:100], max_tokens=40)
    run_all(engine)
    assert request.generated == text


def test_a_text_that_outgrows_the_next_device_ends(faulty: Any, make_engine: Make, run_all: Run, tiny: Any) -> None:
    """The second device can bind one block of 4,096 bytes a layer; the text needs two."""
    first, second = faulty(), faulty(index=1, max_binding=8000)
    engine = make_engine("silu", device=first, reopen=lambda _: second, context=120)
    request = engine.add_request(tiny.PROMPT[:70], max_tokens=40)
    engine.step()
    engine.step()
    lose_at(first, "replay", 1)
    run_all(engine)
    assert engine.max_model_len == 64
    assert (len(request.generated), request.finish_reason) == (2, "length")


@pytest.mark.parametrize("reopen", [None, lambda _: None])
def test_without_another_device_the_loss_is_the_caller_s(faulty: Any, make_engine: Make, reopen: Any) -> None:
    device = faulty()
    engine = make_engine(device=device, reopen=reopen)
    lose_at(device, "replay", 1)
    engine.add_request([1, 2, 3], max_tokens=9)
    engine.step()
    with pytest.raises(DeviceLostError) as caught:
        engine.step()
    assert caught.value.exit_code == 12
    device.before.clear()


def recovery_steps(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message.split(": ", 1)[1] for record in caplog.records if "out of memory" in record.message]


def test_scratch_and_pool_go_first(
    faulty: Any, make_engine: Make, run_all: Run, tiny: Any, text: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    device = faulty()
    budget = Budget(device)
    engine = make_engine("silu", device=device)
    engine.worker.pool.free(engine.worker.pool.alloc(4 << 20))
    budget.limit = budget.used
    request = engine.add_request(tiny.PROMPT[:100], max_tokens=40)
    with caplog.at_level(logging.WARNING):
        run_all(engine)
    assert recovery_steps(caplog) == ["dropped scratch and pooled buffers"]
    assert request.generated == text


def test_the_ladder_is_climbed_rung_by_rung(
    faulty: Any, make_engine: Make, run_all: Run, tiny: Any, text: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Two texts are under way when nearly nothing is left: cache, chunk and the number of sequences shrink in turn."""
    device = faulty()
    budget = Budget(device)
    engine = make_engine("silu", device=device)
    sequences = [engine.add_request(tiny.PROMPT[:100], max_tokens=40) for _ in range(2)]
    engine.step()
    engine.step()
    engine.drop_scratch()
    engine.worker.pool.free(engine.worker.pool.alloc(100))
    budget.limit = held(engine.weights) + 260_000
    engine.add_request(tiny.PROMPT[:90], max_tokens=2)
    with caplog.at_level(logging.WARNING):
        run_all(engine)
    assert recovery_steps(caplog) == [
        "dropped scratch and pooled buffers",
        "evicted reusable prefixes and shrank the cache",
        "halved the prefill chunk",
        "halved the number of concurrent requests",
    ]
    assert [request.generated for request in sequences] == [text, text]


def test_when_nothing_is_left_to_give_up(faulty: Any, make_engine: Make, tiny: Any) -> None:
    device = faulty()
    budget = Budget(device)
    engine = make_engine(device=device)
    engine.drop_scratch()
    budget.limit = held(engine.weights) + 1000
    engine.add_request(tiny.PROMPT[:100])
    with pytest.raises(OutOfMemoryError, match=r"bytes requested, .* bytes free, and nothing is left") as caught:
        engine.step()
    assert caught.value.requested > 0
    assert caught.value.free <= 1000
    assert caught.value.exit_code == 13


def test_weights_that_do_not_fit_are_given_back(faulty: Any, make_engine: Make) -> None:
    from bitnet_hal.device import TransferMode

    device = faulty(transfer=TransferMode.EXPLICIT_COPY)
    budget = Budget(device)
    budget.limit = 20_000
    with pytest.raises(OutOfMemoryError):
        make_engine(device=device)
    assert budget.used == 0


def test_a_record_has_the_details_of_the_error() -> None:
    log = ErrorLog()
    log.add(OutOfMemoryError("no room", backend="cuda", device="H100", code="CUDA_ERROR (2)", hint="Use less"))
    log.add(ValueError("x" * 9000))
    first, second = log.recent
    assert asdict(first) == {
        "time": first.time,
        "kind": "OutOfMemoryError",
        "message": "cuda H100: no room (during alloc) [CUDA_ERROR (2)]. Use less",
        "backend": "cuda",
        "device": "H100",
        "operation": "alloc",
        "code": "CUDA_ERROR (2)",
        "hint": "Use less",
    }
    assert (second.kind, second.backend, second.hint, len(second.message)) == ("ValueError", "", "", 500)


def test_advice_fits_what_did_not_fit(make_engine: Make, faulty: Any, run_all: Run) -> None:
    small = Budget(faulty())
    small.limit = 1000
    with pytest.raises(OutOfMemoryError, match=r"The weights take [\d.]+ [KM]iB, whatever the context"):
        make_engine("silu", device=small.device)
    later = Budget(faulty())
    engine = make_engine("silu", device=later.device)
    later.limit = 0
    engine.add_request([1, 2, 3], max_tokens=2)
    with pytest.raises(OutOfMemoryError, match="Use a smaller --context"):
        run_all(engine)
