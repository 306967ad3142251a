"""Prompt steps that are queued before the tokens of the last are read, on a GPU that works in the order of its queue
and only when the host waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.schedule import prompt_steps, scheduler
from bitnet_core.formats.open import open_model
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.sampling import SamplingParams
from bitnet_hal.base import BoundLaunch
from bitnet_hal.device import DeviceType
from bitnet_hal.errors import DeviceLostError, OutOfMemoryError
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyBuffer, NumpyDevice, NumpyKernel

Make = Callable[..., Any]
Run = Callable[[Any], None]

DELTA_NETS = Path(__file__).parents[2] / "golden" / "bonsai2" / "rotated-PTQ1_0.gguf"


class QueueingDevice(NumpyDevice):
    """The numpy device as a GPU with a queue, and two slots for readbacks that are used in turn. reads: number of
    readbacks; behind: of those that were queued while the last was not read. before_read, before_alloc: called before
    a readback is waited for, and before an allocation."""

    def __init__(self, features: frozenset[str] = frozenset({"async-readback"})) -> None:
        super().__init__(replace(numpy_info(), type=DeviceType.GPU, features=features))
        self._queue: deque[Callable[[], None]] = deque()
        self._slots: list[bytes] = [b"", b""]
        self.reads = 0
        self._unread: set[int] = set()
        self.behind = 0
        self.before_read: Callable[[], None] = lambda: None
        self.before_alloc: Callable[[], None] = lambda: None

    def _wait(self) -> None:
        while self._queue:
            self._queue.popleft()()

    def _alloc(self, nbytes: int, kind: Any) -> NumpyBuffer:
        self.before_alloc()
        return super()._alloc(nbytes, kind)

    def _free(self, buffer: NumpyBuffer) -> None:
        self._wait()
        super()._free(buffer)

    def _run(self, launch: BoundLaunch[NumpyBuffer, NumpyKernel]) -> None:
        run = super()._run
        self._queue.append(lambda: run(launch))

    def _upload(self, buffer: NumpyBuffer, offset: int, source: memoryview) -> None:
        upload, kept = super()._upload, bytes(source)
        self._queue.append(lambda: upload(buffer, offset, memoryview(kept)))

    def _copy(self, *arguments: Any) -> None:
        copy = super()._copy
        self._queue.append(lambda: copy(*arguments))

    def _download(self, buffer: NumpyBuffer, offset: int, target: memoryview) -> None:
        self._wait()
        super()._download(buffer, offset, target)

    def _read_async(self, buffer: NumpyBuffer, offset: int, nbytes: int) -> Callable[[memoryview], None]:
        number = self.reads
        self.reads += 1
        self.behind += number - 1 in self._unread
        self._unread.add(number)
        copied: list[bool] = []

        def copy() -> None:
            self._slots[number % 2] = buffer.data[offset : offset + nbytes].tobytes()
            copied.append(True)

        def read(target: memoryview) -> None:
            self.before_read()
            while not copied:
                self._queue.popleft()()
            assert self.reads - number <= 2  # else the slot has other bytes
            target[:] = self._slots[number % 2]
            self._unread.remove(number)

        self._queue.append(copy)
        return read


@pytest.fixture
def alone(make_engine: Make, run_all: Run) -> Callable[..., list[int]]:
    """Tokens of a prompt on a device without a queue."""

    def generate(tokens: list[int], sampling: SamplingParams | None = None, max_tokens: int = 12) -> list[int]:
        engine = make_engine("silu")
        request = engine.add_request(tokens, sampling, max_tokens=max_tokens)
        run_all(engine)
        return list(request.generated)

    return generate


def prompts_of(tiny: Any, count: int, length: int = 20) -> list[list[int]]:
    """Return different prompts."""
    return [list(tiny.PROMPT[at : at + length]) for at in range(count)]


def begun(requests: list[Any]) -> list[int]:
    return [request.generated_tokens for request in requests]


def test_a_step_is_queued_before_the_tokens_of_the_last_are_read(
    make_engine: Make,
    run_all: Run,
    alone: Callable[..., list[int]],
    tiny: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler, "SHARED_SECONDS", 60.0)
    device = QueueingDevice()
    engine = make_engine("silu", device=device, prefill_chunk=40)
    requests = [engine.add_request(prompt, max_tokens=12) for prompt in prompts_of(tiny, 6)]
    assert [output.tokens for output in engine.step()] == [()] * 6
    assert begun(requests) == [0] * 6
    made = []
    while 0 in begun(requests):
        engine.step()
        made.append((begun(requests), device.behind))
    assert made == [([1, 1, 0, 0, 0, 0], 1), ([1, 1, 1, 1, 0, 0], 2), ([1] * 6, 2)]
    run_all(engine)
    assert [request.generated for request in requests] == [alone(list(one.tokens[:20])) for one in requests]


def test_a_device_that_cannot_read_while_it_works_waits_for_each_step(
    make_engine: Make, run_all: Run, alone: Callable[..., list[int]], tiny: Any
) -> None:
    engine = make_engine("silu", device=QueueingDevice(frozenset()), prefill_chunk=40)
    requests = [engine.add_request(prompt, max_tokens=12) for prompt in prompts_of(tiny, 4)]
    engine.step()
    assert begun(requests) == [1, 1, 0, 0]
    run_all(engine)
    assert [request.generated for request in requests] == [alone(list(one.tokens[:20])) for one in requests]


def test_a_request_ends_while_its_first_token_is_in_flight(
    make_engine: Make, run_all: Run, alone: Callable[..., list[int]], tiny: Any
) -> None:
    """Its blocks go to the next requests, whose steps overwrite them."""
    engine = make_engine("silu", device=QueueingDevice(), prefill_chunk=40, max_sequences=2)
    first, second, third, fourth = [engine.add_request(one, max_tokens=12) for one in prompts_of(tiny, 4)]
    engine.step()
    engine.finish_request(first)
    engine.step()
    assert (first.generated, second.generated_tokens) == ([], 1)
    engine.finish_request(second)
    run_all(engine)
    for request in (third, fourth):
        assert request.generated == alone(request.tokens[: request.prompt_tokens])


def test_no_request_is_left_of_a_step_in_flight(
    make_engine: Make, run_all: Run, alone: Callable[..., list[int]], tiny: Any
) -> None:
    engine = make_engine("silu", device=QueueingDevice(), prefill_chunk=40)
    requests = [engine.add_request(one, max_tokens=12) for one in prompts_of(tiny, 3)]
    engine.step()
    engine.finish_request(requests[0])
    engine.finish_request(requests[1])
    run_all(engine)
    assert requests[2].generated == alone(requests[2].tokens[:20])
    engine.add_request(requests[0].tokens, max_tokens=12)
    engine.step()
    engine.fail_all(RuntimeError("over"))
    assert engine.step() == []


def test_a_request_is_preempted_while_its_first_token_is_in_flight(
    make_engine: Make, run_all: Run, alone: Callable[..., list[int]], tiny: Any
) -> None:
    """A score takes its blocks between two steps, and it is admitted again before the step is read."""
    engine = make_engine("silu", device=QueueingDevice(), max_sequences=1)
    request = engine.add_request(tiny.PROMPT[:70], max_tokens=12)
    engine.step()
    engine.logits(tiny.PROMPT[5:30])
    assert engine.figures()["preemptions"] == 1
    run_all(engine)
    assert request.generated == alone(tiny.PROMPT[:70])


def test_the_prefix_of_a_queued_step_is_shared(
    make_engine: Make, run_all: Run, alone: Callable[..., list[int]], tiny: Any
) -> None:
    device = QueueingDevice()
    engine = make_engine("silu", device=device)
    first = engine.add_request(tiny.PROMPT[:80], max_tokens=12)
    engine.step()
    second = engine.add_request(tiny.PROMPT[:90], max_tokens=12)
    engine.step()
    assert (second.cached_tokens, second.pending, device.behind) == (64, 0, 1)
    run_all(engine)
    assert first.generated == alone(tiny.PROMPT[:80])
    assert second.generated == alone(tiny.PROMPT[:90])


def test_a_score_is_read_at_once_and_waits_for_what_is_in_flight(make_engine: Make, run_all: Run, tiny: Any) -> None:
    engine = make_engine("silu", device=QueueingDevice(), prefill_chunk=40)
    request = engine.add_request(tiny.PROMPT[:20], max_tokens=1)
    engine.step()
    scored: list[int] = []
    score = engine.add_request(tiny.PROMPT[3:9], max_tokens=0, scored=lambda at, _: scored.append(at))
    assert [output.request for output in engine.step()] == [request]
    assert [output.request for output in engine.step()] == [score]
    assert scored == list(range(6))
    assert engine.step() == []


def test_requests_that_the_host_samples_are_read_at_once(
    make_engine: Make,
    run_all: Run,
    alone: Callable[..., list[int]],
    tiny: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler, "SHARED_SECONDS", 60.0)
    device = QueueingDevice()
    engine = make_engine("silu", device=device, prefill_chunk=40)
    samplings = [None, None, SamplingParams(1.0, seed=3), SamplingParams(0, logprobs=2), None, None]
    requests = [
        engine.add_request(prompt, sampling, max_tokens=12)
        for prompt, sampling in zip(prompts_of(tiny, 6), samplings, strict=True)
    ]
    made = []
    while 0 in begun(requests):
        engine.step()
        made.append([min(1, count) for count in begun(requests)])
    assert made == [[0] * 6, [1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0], [1] * 6]
    run_all(engine)
    for request, sampling in zip(requests, samplings, strict=True):
        assert request.generated == alone(request.tokens[:20], sampling)
    assert len(requests[3].sampler.scores) == 12


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_requests_that_decode_get_a_turn_between_steps_in_flight(
    make_engine: Make,
    run_all: Run,
    alone: Callable[..., list[int]],
    tiny: Any,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
) -> None:
    monkeypatch.setattr(scheduler, "SHARED_SECONDS", seconds)
    device = QueueingDevice()
    engine = make_engine("silu", device=device, prefill_chunk=40)
    requests = [engine.add_request(prompt, max_tokens=12) for prompt in prompts_of(tiny, 8)]
    while 0 in begun(requests):
        engine.step()
    assert (max(begun(requests)) > 1) == (seconds == 0)
    assert device.reads - device.behind == 1  # the first
    run_all(engine)
    assert [request.generated for request in requests] == [alone(list(one.tokens[:20])) for one in requests]


def test_a_device_is_lost_while_tokens_are_in_flight(
    make_engine: Make, run_all: Run, alone: Callable[..., list[int]], tiny: Any
) -> None:
    device = QueueingDevice()
    engine = make_engine("silu", device=device, prefill_chunk=40, reopen=lambda error: NumpyDevice())
    requests = [engine.add_request(prompt, max_tokens=12) for prompt in prompts_of(tiny, 6)]
    engine.step()

    def lose() -> None:
        raise DeviceLostError("the device fell off the bus", backend="numpy", operation="read")

    device.before_read = lose
    run_all(engine)
    assert engine.device is not device
    assert [request.generated for request in requests] == [alone(list(one.tokens[:20])) for one in requests]


def test_a_read_is_interrupted_and_tried_again(
    make_engine: Make, run_all: Run, alone: Callable[..., list[int]], tiny: Any
) -> None:
    device = QueueingDevice()
    engine = make_engine("silu", device=device, prefill_chunk=40)
    requests = [engine.add_request(prompt, max_tokens=12) for prompt in prompts_of(tiny, 6)]
    engine.step()

    def interrupt() -> None:
        device.before_read = lambda: None
        raise KeyboardInterrupt

    device.before_read = interrupt
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert begun(requests) == [0] * 6
    run_all(engine)
    assert [request.generated for request in requests] == [alone(list(one.tokens[:20])) for one in requests]


def test_memory_is_short_for_a_step_behind_one_in_flight(
    make_engine: Make, run_all: Run, alone: Callable[..., list[int]], tiny: Any
) -> None:
    device = QueueingDevice()
    engine = make_engine("silu", device=device)
    first = engine.add_request(tiny.PROMPT[:10], max_tokens=12)
    engine.step()
    second = engine.add_request(tiny.PROMPT[3:90], max_tokens=12)  # its step needs larger buffers

    def fail() -> None:
        device.before_alloc = lambda: None
        raise OutOfMemoryError("full", requested=1, free=0, backend="numpy")

    device.before_alloc = fail
    run_all(engine)
    assert first.generated == alone(tiny.PROMPT[:10])
    assert second.generated == alone(tiny.PROMPT[3:90])


def test_states_of_delta_nets_are_kept_behind_the_steps_that_make_them(run_all: Run) -> None:
    """A second turn begins at a checkpoint that was saved while the step was in flight."""
    prompts = [[11 * n % 300 for n in range(128)], [7 * n % 300 for n in range(90)], [9]]
    texts = []
    for device in (QueueingDevice(), NumpyDevice()):
        engine = Engine(open_model(DELTA_NETS), device, EngineOptions(prefill_chunk=128))
        turns = [engine.add_request(prompt, max_tokens=6) for prompt in prompts]
        run_all(engine)
        again = [engine.add_request([*turn.tokens, 5], max_tokens=6) for turn in turns]
        run_all(engine)
        texts.append([request.tokens for request in again])
        assert again[0].cached_tokens == 128
        engine.close()
    assert texts[0] == texts[1]


@pytest.mark.parametrize(("waits", "speed"), [(0.01, 3200.0), (0.0, 0.0)])
def test_the_speed_of_a_step_counts_from_the_end_of_the_last(
    make_engine: Make, tiny: Any, monkeypatch: pytest.MonkeyPatch, waits: float, speed: float
) -> None:
    """It is not known if the host was too late to wait for that end. Steps behind the first, which decodes, have 32
    rows."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(prompt_steps, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(prompt_steps, "_SHARED_ROWS", 32)
    device = QueueingDevice()
    engine = make_engine("silu", device=device, prefill_chunk=40)
    for prompt in prompts_of(tiny, 6):
        engine.add_request(prompt, max_tokens=9)
    engine.step()
    prompts = engine.scheduler.prompts
    prompts.in_flight[0].began = None  # of the first step nothing is known

    def wait() -> None:
        clock.now += waits

    device.before_read = wait
    engine.step()
    assert prompts._rows_per_second == 0
    engine.step()
    assert prompts._rows_per_second == pytest.approx(speed)


@pytest.mark.parametrize("seed", range(6))
def test_requests_that_come_and_go_at_random(
    make_engine: Make,
    run_all: Run,
    alone: Callable[..., list[int]],
    tiny: Any,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    random = Random(seed)
    monkeypatch.setattr(scheduler, "SHARED_SECONDS", random.choice([0.0, 60.0]))
    blocks = random.choice([4, 8, 64])
    engine = make_engine(
        "silu", device=QueueingDevice(), prefill_chunk=64, max_sequences=4, kv_cache_size=blocks * 2 * 2 * 64 * 2 * 32
    )
    requests = []
    for _ in range(14):
        start, length = random.randrange(20), random.choice([3, 20, 60, 100])
        sampling = random.choice([None, None, None, SamplingParams(1.0, seed=seed)])
        tokens = tiny.PROMPT[start : start + length]
        requests.append((engine.add_request(tokens, sampling, max_tokens=random.randrange(1, 12)), sampling))
        for _ in range(random.randrange(4)):
            engine.step()
        if random.random() < 0.2:
            engine.finish_request(random.choice(requests)[0])
        if random.random() < 0.2:
            engine.logits(tiny.PROMPT[:10])
    run_all(engine)
    for request, sampling in requests:
        whole = alone(request.tokens[: request.prompt_tokens], sampling, request.max_tokens)
        assert request.generated == whole[: request.generated_tokens]
        assert request.finish_reason == "cancelled" or request.generated == whole
