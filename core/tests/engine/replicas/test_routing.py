"""Measured speeds, and the device where a request ends soonest."""

from __future__ import annotations

from typing import Any

import pytest
from bitnet_core.engine.replicas.routing import TextLength, Work, end_seconds
from bitnet_core.engine.replicas.speed import DeviceSpeed

IDLE = Work(requests=0, slots=4, prompt_tokens=0, tokens=0)


def speed(fixed: float, each: float, prompt: float) -> DeviceSpeed:
    made = DeviceSpeed()
    for requests in (1, 4, 1, 4):
        made.add_step(requests, fixed + each * requests)
    made.add_prompt(100, 100 * prompt)
    return made


def test_steps_are_fitted() -> None:
    found = speed(0.01, 0.002, 0.001)
    assert [found.step_seconds(n) for n in (1, 2, 8)] == pytest.approx([0.012, 0.014, 0.026])
    assert found.prompt_seconds(50) == pytest.approx(0.05)


def test_nothing_is_known_before_a_measurement() -> None:
    assert (DeviceSpeed().step_seconds(3), DeviceSpeed().prompt_seconds(3)) == (0, 0)


def test_times_never_become_negative() -> None:
    found = DeviceSpeed()
    for requests, seconds in ((1, 0.001), (4, 0.1)):
        found.add_step(requests, seconds)
    assert found.step_seconds(1) > 0


def test_old_speeds_are_forgotten_and_one_slow_step_counts_little() -> None:
    found = speed(0.01, 0.0, 0.001)
    found.add_step(2, 60.0)
    assert found.step_seconds(2) < 0.03
    for _ in range(600):
        found.add_step(2, 0.02)
    assert found.step_seconds(2) == pytest.approx(0.02, rel=0.02)


def test_a_slow_device_is_used_if_the_fast_one_is_busy() -> None:
    fast, slow = speed(0.01, 0.0, 0.0001), speed(0.05, 0.0, 0.001)
    asked = {"prompt_tokens": 10, "tokens": 20.0}
    assert end_seconds(fast, IDLE, **asked) < end_seconds(slow, IDLE, **asked)
    full = Work(requests=8, slots=4, prompt_tokens=0, tokens=8 * 100)
    assert end_seconds(fast, full, **asked) > end_seconds(slow, IDLE, **asked)


def test_cached_tokens_and_queued_prompts_count() -> None:
    device = speed(0.01, 0.0, 0.001)
    busy = Work(requests=1, slots=4, prompt_tokens=1000, tokens=10)
    assert end_seconds(device, busy, 500, 1) - end_seconds(device, IDLE, 500, 1) == pytest.approx(1.0)
    assert end_seconds(device, IDLE, 500, 1) - end_seconds(device, IDLE, 20, 1) == pytest.approx(0.48)


def test_usual_length(make_engine: Any) -> None:
    usual = TextLength()
    request = make_engine("silu").add_request([1], max_tokens=100)
    assert usual.left(request) == 100
    usual.add(30)
    assert usual.left(request) == 30
    request.tokens += [1] * 60
    assert usual.left(request) == 1
