"""Warming up: the work of an engine before its first requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from bitnet_core.engine.replicas import warmup
from bitnet_core.engine.replicas.warmup import warm_up
from bitnet_core.options.sampling import SamplingParams
from bitnet_hal.device import DeviceType
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyDevice

KINDS = [SamplingParams(), SamplingParams(temperature=1.0)]
GPU = replace(numpy_info(), type=DeviceType.GPU)


def ignored(*_: object) -> None:
    pass


def test_steps_of_every_size_are_recorded_and_nothing_is_counted(
    make_engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warmup, "_LONG", 60.0)  # numpy is slow
    engine = make_engine(device=NumpyDevice(GPU), max_sequences=3, prefill_chunk=100)
    before = dict(engine.scheduler.counts), dict(engine.scheduler.seconds), engine.figures()
    stages: list[tuple[str, int, int]] = []
    bursts, sizes = 9, [32, 64, 96, 100]
    assert len(list(warm_up(engine, KINDS, lambda *stage: stages.append(stage)))) == bursts + len(sizes)
    assert stages == [("compiling", at, 3) for at in range(3)]
    recorded = set(engine.recordings())
    assert {f"greedy decode, {size} rows" for size in (1, 2, 3)} <= recorded
    assert {f"prompt, {size} rows" for size in sizes} <= recorded
    assert (dict(engine.scheduler.counts), dict(engine.scheduler.seconds), engine.figures()) == before


def test_larger_bursts_are_left_out_on_a_slow_device(
    make_engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warmup, "_SLOW", 0.0)
    monkeypatch.setattr(warmup, "_LONG", 0.0)
    engine = make_engine(device=NumpyDevice(GPU), max_sequences=3)
    assert len(list(warm_up(engine, KINDS, ignored))) == 3 + 1


def test_a_warm_device_queues_a_prompt_of_any_length_as_a_recording(
    make_engine: Callable[..., Any], run_all: Callable[..., Any], tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Direct launches of a new number of rows take the host longer than the device."""
    monkeypatch.setattr(warmup, "_LONG", 60.0)
    engine = make_engine(device=NumpyDevice(GPU), max_sequences=3)
    list(warm_up(engine, KINDS, ignored))
    monkeypatch.setattr(engine.runner().plan, "body", None)  # launches would need it
    requests = [engine.add_request((tiny.PROMPT * 9)[:length], max_tokens=2) for length in (5, 77, 150)]
    run_all(engine)
    cold = make_engine(device=NumpyDevice(numpy_info()), max_sequences=3)
    beside = [cold.add_request(request.tokens[: request.prompt_tokens], max_tokens=2) for request in requests]
    run_all(cold)
    assert [one.generated for one in requests] == [one.generated for one in beside]


def test_a_failure_leaves_no_requests(
    make_engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine(device=NumpyDevice(GPU), max_sequences=3)

    def broken() -> None:
        raise ValueError("a kernel is broken")

    monkeypatch.setattr(engine, "step", broken)
    assert len(list(warm_up(engine, KINDS, ignored))) == 1
    assert "a kernel is broken" in caplog.text
    assert not engine.figures()["waiting"]


@pytest.mark.parametrize("info", [numpy_info(), replace(GPU, fake=True)])
def test_only_gpus_are_warmed_up(make_engine: Callable[..., Any], info: Any) -> None:
    assert list(warm_up(make_engine(device=NumpyDevice(info)), KINDS, ignored)) == []


class Ahead(NumpyDevice):
    """A GPU that compiles ahead. order: ("announced" or "compiled", kernel)."""

    def __init__(self) -> None:
        super().__init__(replace(GPU, features=frozenset({"compile-ahead"})))
        self.order: list[tuple[str, str]] = []

    def compile_ahead(self, spec: Any, constants: Any, tuning: Any) -> None:
        self.order.append(("announced", spec.name))

    def compile(self, spec: Any, constants: Any, tuning: Any) -> Any:
        self.order.append(("compiled", spec.name))
        return super().compile(spec, constants, tuning)


def names(device: Ahead, kind: str) -> set[str]:
    return {name for found, name in device.order if found == kind}


def test_the_kernels_of_the_first_steps_are_compiled_together(
    make_engine: Callable[..., Any], run_all: Callable[..., Any], tiny: Any
) -> None:
    device = Ahead()
    engine = make_engine(device=device, max_sequences=3)
    request = engine.add_request(tiny.PROMPT, max_tokens=3)
    run_all(engine)
    assert names(device, "compiled") - names(device, "announced") == {"top_k"}
    for name in names(device, "announced"):
        assert device.order.index(("announced", name)) < device.order.index(("compiled", name))
    beside = make_engine(max_sequences=3)
    same = beside.add_request(tiny.PROMPT, max_tokens=3)
    run_all(beside)
    assert request.generated == same.generated


def test_the_kernels_of_a_server_are_announced_before_its_first_step(make_engine: Callable[..., Any]) -> None:
    device = Ahead()
    bursts = warm_up(make_engine(device=device, max_sequences=3), KINDS, ignored)
    next(bursts)
    kinds = [kind for kind, _ in device.order]
    assert kinds == sorted(kinds)  # "announced" first
    assert names(device, "announced") >= names(device, "compiled") - {"top_k"}
    bursts.close()
