"""One model on several devices: equal texts, devices that fail in the middle, cancelling, closing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.replicas import arrivals
from bitnet_core.engine.replicas import replica as replica_module
from bitnet_core.engine.replicas.arrivals import OtherDevices
from bitnet_core.engine.replicas.replica import Replica
from bitnet_core.engine.replicas.replica_set import ReplicaSet
from bitnet_core.engine.replicas.speed import DeviceSpeed
from bitnet_core.engine.schedule.results import RequestOutput
from bitnet_core.errors import ModelError
from bitnet_core.model.config import Pooling
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.sampling import SamplingParams
from bitnet_hal.device import DeviceInfo
from bitnet_hal.errors import DeviceLostError, DeviceNotFoundError, GpuError, GpuTimeoutError

SHORT = {"stream_interval": 1e-9, "max_sequences": 4}
SEEDED = SamplingParams(temperature=0.9, top_k=20, seed=5)


class Local(Engine):
    """An engine of this process with what a ReplicaSet expects of a RemoteEngine."""

    away = False

    def beside(self, device: Any) -> Local:
        try:
            return Local(self.source, device, self.options)
        except BaseException:
            device.close()
            raise

    def step(self) -> list[RequestOutput]:
        return [] if self.away else super().step()

    def leave(self) -> None:
        with self.lock:
            self.away = True
            self._give_up_device()
            self.scheduler.waiting.clear()

    def resume(self, device: Any) -> None:
        with self.lock:
            try:
                self._use(device)
                self.cache()  # loads the model
            except BaseException:
                self._give_up_device()
                raise
            self.away = False


class Further:
    """Further devices by name; a device that is None cannot be opened. arriving: those that came back, or new ones."""

    def __init__(self, devices: dict[str, Any], *, required: bool = True) -> None:
        self.devices = devices
        self.required = required
        self.arriving: dict[str, Any] = {}
        self.asked: list[set[str]] = []

    def names(self, first: str) -> Sequence[str]:
        return list(self.devices)

    def open(self, name: str) -> Any:
        if self.devices[name] is None:
            raise DeviceNotFoundError(f"there is no device {name}")
        return self.devices[name]

    def arrived(self, away: Mapping[str, Any], used: Sequence[DeviceInfo], *, new: bool) -> dict[str, DeviceInfo]:
        self.asked.append(set(away))
        return {name: device.info for name, device in self.arriving.items() if name in away or new}

    def reopen(self, info: DeviceInfo) -> Any:
        name = next(name for name, device in self.arriving.items() if device.info is info)
        return self.arriving.pop(name)


class Loaded:
    """A model with further devices, as bitnet_core.api.Model."""

    def __init__(self, engine: Engine, others: OtherDevices | None) -> None:
        self.engine, self.others = engine, others
        self.closed_in: threading.Thread | None = None

    def close(self) -> None:
        self.closed_in = threading.current_thread()
        self.engine.close()


class Texts:
    """The tokens that were delivered, by request."""

    def __init__(self) -> None:
        self.tokens: dict[Any, list[int]] = {}
        self.ended: dict[Any, str] = {}

    def deliver(self, _: Engine, outputs: list[Any]) -> None:
        for request, tokens in outputs:
            self.tokens.setdefault(request, []).extend(tokens)
            if request.finish_reason is not None:
                self.ended[request] = request.finish_reason


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.fixture(autouse=True)
def alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all devices count as equally fast, so that requests are shared out evenly on a busy machine too."""
    monkeypatch.setattr(DeviceSpeed, "step_seconds", lambda _, requests: 0.01 * requests)
    monkeypatch.setattr(DeviceSpeed, "prompt_seconds", lambda _, tokens: 0.001 * tokens)


Running = tuple[ReplicaSet[Any], Texts]


@pytest.fixture
def running(tiny: Any, faulty: Any) -> Any:
    """running(others, device=None, **options): a set whose devices all take requests, and its texts."""

    @contextmanager
    def run(others: OtherDevices | None, device: Any = None, wait: bool = True, **options: Any) -> Iterator[Running]:
        texts = Texts()

        def load() -> Loaded:
            source = tiny.TinySource(tiny.CONFIGS["silu"], 0)
            engine = Local(source, device or faulty(), EngineOptions(**{**SHORT, **options}))
            return Loaded(engine, others)

        made: ReplicaSet[Any] = ReplicaSet(load, texts.deliver)
        made.start()
        try:
            until(lambda: made.model is not None)
            until(lambda: not wait or all(one.state == "ready" for one in made.devices()))
            yield made, texts
        finally:
            made.close(10)
        assert not any(replica.thread.alive for replica in made.replicas)

    return run


def ask(made: ReplicaSet[Any], count: int, tokens: int = 40, sampling: SamplingParams | None = None) -> list[Any]:
    engine = made.model.engine
    requests = [engine.new_request([at + 1, 2, 3], sampling, max_tokens=tokens) for at in range(count)]
    made.submit(requests)
    return requests


@pytest.fixture
def alone(make_engine: Any, run_all: Any) -> Callable[..., list[list[int]]]:
    """alone(count, tokens, sampling): the texts of `ask` on one device without a set."""

    def texts(count: int, tokens: int = 40, sampling: SamplingParams | None = None) -> list[list[int]]:
        engine = make_engine("silu", **SHORT)
        requests = [engine.add_request([at + 1, 2, 3], sampling, max_tokens=tokens) for at in range(count)]
        run_all(engine)
        return [request.generated for request in requests]

    return texts


def lose(device: Any, kind: type[GpuError] = DeviceLostError) -> None:
    """Let every further step of a device fail."""

    def fail(*_: Any, **__: Any) -> None:
        raise kind("fell off the bus", backend="numpy")

    device.before.update(replay=fail, launch=fail)


@pytest.mark.parametrize("sampling", [None, SEEDED])
def test_texts_are_those_of_one_device(running: Any, faulty: Any, alone: Any, sampling: SamplingParams | None) -> None:
    others = Further({"b:0": faulty(), "c:0": faulty()})
    with running(others) as (made, texts):
        requests = ask(made, 9, sampling=sampling)
        until(lambda: len(texts.ended) == 9)
        busy = [one.device for one in made.devices() if one.generated_tokens > 80]
        assert len({id(engine.source) for engine in made.engines}) == 1  # the file is opened once
        assert made.slots == 12
    expected = alone(9, sampling=sampling)
    assert [texts.tokens[request] for request in requests] == expected
    assert [request.generated for request in requests] == expected
    assert len(busy) == 3


@pytest.mark.parametrize("sampling", [None, SEEDED])
@pytest.mark.parametrize("kind", [DeviceLostError, GpuTimeoutError])
def test_a_device_that_fails_gives_its_texts_to_the_others(
    running: Any, faulty: Any, alone: Any, sampling: SamplingParams | None, kind: type[GpuError]
) -> None:
    first, second = faulty(), faulty()
    with running(Further({"b:0": second}), first) as (made, texts):
        requests = ask(made, 6, sampling=sampling)
        until(lambda: all(len(texts.tokens.get(request, ())) > 3 for request in requests))
        assert all(replica.requests for replica in made.replicas)
        lose(first, kind)
        until(lambda: len(texts.ended) == 6)
        first_state, second_state = made.devices()
        assert (first_state.state, second_state.state) == ("away", "ready")
        assert "fell off the bus" in first_state.reason
        assert sum(made.handovers.values()) >= 1
        assert made.error is None
        assert made.figures()["running"] == 0
        late = ask(made, 2, sampling=sampling)
        until(lambda: len(texts.ended) == 8)
    assert [texts.tokens[request] for request in requests] == alone(6, sampling=sampling)
    assert [texts.tokens[request] for request in late] == alone(2, sampling=sampling)
    assert set(texts.ended.values()) == {"length"}


def test_the_last_device_that_is_lost_ends_everything(running: Any, faulty: Any) -> None:
    first, second = faulty(), faulty()
    with running(Further({"b:0": second}), first) as (made, texts):
        requests = ask(made, 30, tokens=200)
        until(lambda: len(texts.tokens) >= 4)
        lose(first)
        lose(second)
        until(lambda: len(texts.ended) == 30)
        assert {request.finish_reason for request in requests} == {"error"}
        assert all(isinstance(request.error, DeviceLostError) for request in requests)
        until(lambda: isinstance(made.error, DeviceLostError))
        assert [one.state for one in made.devices()] == ["away", "away"]


def test_a_request_that_breaks_every_device_ends(running: Any, faulty: Any) -> None:
    """A launch that fails whenever the first token of this prompt is computed."""
    devices = [faulty() for _ in range(4)]
    with running(Further({f"b:{at}": device for at, device in enumerate(devices[1:])}), devices[0]) as (made, _):
        for device in devices:
            lose(device, GpuTimeoutError)
        (request,) = ask(made, 1)
        until(lambda: request.finish_reason is not None)
        assert isinstance(request.error, GpuTimeoutError)
        assert sum(one.state == "ready" for one in made.devices()) == 1


def test_a_named_device_that_cannot_be_used_ends_the_set(running: Any, caplog: pytest.LogCaptureFixture) -> None:
    with running(Further({"b:0": None}), wait=False) as (made, _):
        until(lambda: made.error is not None)
        assert isinstance(made.error, DeviceNotFoundError)
    assert "cannot be used" not in caplog.text  # the error says it


def test_of_all_devices_those_that_fail_are_left_out(running: Any, faulty: Any, alone: Any) -> None:
    others = Further({"b:0": None, "c:0": faulty()}, required=False)
    with running(others, wait=False) as (made, texts):
        until(lambda: [one.state for one in made.devices()] == ["ready", "away", "ready"])
        assert made.devices()[1].reason.startswith("there is no device b:0")
        requests = ask(made, 4)
        until(lambda: len(texts.ended) == 4)
        assert made.error is None
    assert [texts.tokens[request] for request in requests] == alone(4)


def test_cancelled_requests_leave_the_queue_and_the_devices(running: Any, faulty: Any) -> None:
    with running(Further({"b:0": faulty()}), max_sequences=1) as (made, texts):
        requests = ask(made, 8, tokens=250)
        until(lambda: sum(bool(tokens) for tokens in texts.tokens.values()) == 2)
        assert len(made.requests()) == 8
        made.cancel(requests)
        until(lambda: not made.requests())
        assert {request.finish_reason for request in requests} == {"cancelled"}
        until(lambda: made.figures()["running"] + made.figures()["waiting"] == 0)
        (again,) = ask(made, 1)
        until(lambda: again in texts.ended)


def test_all_requests_fail_at_once(running: Any, faulty: Any) -> None:
    with running(Further({"b:0": faulty()}), max_sequences=1) as (made, texts):
        requests = ask(made, 8, tokens=250)
        error = ModelError("over")
        made.fail_all(error)
        until(lambda: len(texts.ended) == 8)
        assert {request.error for request in requests} == {error}


def test_closing_ends_what_runs_and_what_waits(running: Any, faulty: Any) -> None:
    with running(Further({"b:0": faulty()}), max_sequences=1) as (made, texts):
        requests = ask(made, 8, tokens=250)
        until(lambda: bool(texts.tokens))
        model = made.model
    assert {request.finish_reason for request in requests} == {"error"}
    assert len(texts.ended) == 8
    assert model.closed_in is not None


def test_a_text_that_outgrows_a_small_cache_goes_on_in_a_large_one(running: Any, faulty: Any, alone: Any) -> None:
    with running(Further({"b:0": faulty()})) as (made, texts):
        small = made.replicas[1]

        def shrink(owner: Any) -> None:
            """Leave one block of 64 tokens, as a lack of memory does."""
            owner.engine.worker.drop_runner()
            owner.engine.worker.blocks = 1
            owner.engine._ready()

        small.thread.call(shrink).result(10)
        made._dispatcher.usual.add(10)
        requests = ask(made, 4, tokens=100)
        until(lambda: len(texts.ended) == 4)
        assert small.engine.scheduler.counts["generated_tokens"] > 60
    assert [texts.tokens[request] for request in requests] == alone(4, tokens=100)


def test_a_prompt_goes_where_its_beginning_is_cached(running: Any, faulty: Any) -> None:
    with running(Further({"b:0": faulty()})) as (made, texts):
        engine = made.model.engine
        prompt = [at % 50 for at in range(200)]
        second = made.replicas[1]
        warm = second.thread.call(lambda owner: owner.engine.add_request(prompt, max_tokens=1)).result(10)
        until(lambda: warm.finish_reason is not None)
        assert second.engine.cached_prefix(engine.new_request(prompt, max_tokens=4)) == 192
        for _ in range(3):
            request = engine.new_request(prompt, max_tokens=4)
            made.submit([request])
            until(lambda request=request: request in texts.ended)
            assert request.cached_tokens == 192
        assert engine.figures()["prefix_hits"] == 0


@pytest.mark.parametrize("fast", [0, 1])
def test_of_a_card_under_two_apis_the_faster_one_computes(
    running: Any, faulty: Any, monkeypatch: pytest.MonkeyPatch, fast: int
) -> None:
    devices = [faulty(), faulty(), faulty()]
    for device in devices[:2]:
        device.info = replace(device.info, physical_id="0000:03:00.0")
    with running(Further({"b:0": devices[1], "c:0": devices[2]}), devices[0], max_sequences=2) as (made, texts):
        monkeypatch.setattr(Replica, "full_rate", property(lambda one: float(one is made.replicas[fast])))
        requests = ask(made, 8)
        until(lambda: len(texts.ended) == len(requests))
        counts = [one.generated_tokens for one in made.devices()]
    assert counts[1 - fast] == 0
    assert counts[fast] > 0 < counts[2]


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for devices without a pause."""
    monkeypatch.setattr(arrivals, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(replica_module, "RETURN_SECONDS", 0.0)


@pytest.mark.parametrize("sampling", [None, SEEDED])
def test_a_device_lost_in_mid_text_returns_and_is_lost_again(
    running: Any, faulty: Any, alone: Any, eager: None, sampling: SamplingParams | None
) -> None:
    second = faulty()
    others = Further({"b:0": second})
    with running(others) as (made, texts):
        replica = made.replicas[1]
        long = ask(made, 4, tokens=200, sampling=sampling)
        for lost in (1, 2):
            short = ask(made, 4, sampling=sampling)
            until(lambda: any(texts.tokens.get(request) for request in tuple(replica.requests)))
            lose(second)
            until(lambda: replica.state == "away")
            until(lambda: {"b:0"} in others.asked)  # it is looked for, and not taken in before it is there
            assert "fell off the bus" in made.devices()[1].reason
            second = others.arriving["b:0"] = faulty()
            until(lambda: replica.state == "ready")
            assert replica.returns == lost
            until(lambda short=short: all(request in texts.ended for request in short))
            others.asked.clear()
        assert made.error is None
        until(lambda: len(texts.ended) == 12)
    assert [texts.tokens[request] for request in long] == alone(4, tokens=200, sampling=sampling)
    assert made.handovers["b:0"] >= 2


def test_the_first_device_returns_too(running: Any, faulty: Any, alone: Any, eager: None) -> None:
    first, others = faulty(), Further({"b:0": faulty()})
    with running(others, first) as (made, texts):
        lose(first)
        requests = ask(made, 4)
        until(lambda: len(texts.ended) == 4)
        others.arriving["numpy:0"] = faulty()
        until(lambda: made.devices()[0].state == "ready")
        requests += ask(made, 4)
        until(lambda: len(texts.ended) == 8)
    assert [texts.tokens[request] for request in requests] == alone(4) * 2


def test_a_new_device_is_taken_in_between_texts(running: Any, faulty: Any, alone: Any, eager: None) -> None:
    """Only where all devices are wanted, and one that fails is no end."""
    with running(Further({}, required=False), max_sequences=2) as (made, texts):
        others = made.model.others
        requests = ask(made, 8, tokens=100)
        until(lambda: bool(texts.tokens))
        others.arriving.update({"b:0": faulty(), "c:0": faulty()})
        lose(others.arriving["c:0"])
        others.devices["c:0"] = None
        made._arrivals._look(new=True, changed=False)
        until(lambda: [one.state for one in made.devices()][:2] == ["ready", "ready"])
        until(lambda: len(texts.ended) == 8)
        assert made.devices()[1].generated_tokens > 60
        assert (made.devices()[2].state, made.error) == ("away", None)
    assert [texts.tokens[request] for request in requests] == alone(8, tokens=100)


def test_a_model_that_embeds_texts_uses_one_device(tiny: Any, faulty: Any) -> None:
    source = tiny.TinySource(tiny.CONFIGS["silu"], 0)
    source.config = replace(source.config, pooling=Pooling("last"))
    made: ReplicaSet[Any] = ReplicaSet(lambda: Loaded(Local(source, faulty()), Further({"b:0": faulty()})), print)
    made.start()
    until(lambda: made.error is not None)
    made.close(10)
    assert "uses one device" in str(made.error)
