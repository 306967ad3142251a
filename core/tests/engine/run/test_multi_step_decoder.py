"""Greedy bursts queued behind those that are waited for, on devices with the feature "async-readback"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Make = Callable[..., Any]
Run = Callable[[Any], None]


@pytest.fixture
def alone(make_engine: Make, run_all: Run) -> Callable[..., list[int]]:
    """Tokens of a prompt on a device without the feature."""

    def generate(tokens: list[int], max_tokens: int = 100, **options: Any) -> list[int]:
        engine = make_engine("silu")
        request = engine.add_request(tokens, max_tokens=max_tokens, **options)
        run_all(engine)
        return list(request.generated)

    return generate


def test_tokens_are_the_same_and_nothing_is_downloaded(
    async_device: Callable[[], Any], make_engine: Make, run_all: Run, alone: Callable[..., list[int]]
) -> None:
    device = async_device()
    engine = make_engine("silu", device=device, stream_interval=1000)
    text = engine.add_request([1, 2, 3], max_tokens=100)
    engine.step()
    downloads = device.calls["download"]
    run_all(engine)
    assert text.generated == alone([1, 2, 3])
    assert device.calls["replay"] == 99
    assert device.calls["download"] == downloads
    assert device.calls["read_async"] >= 7


def test_a_burst_is_queued_while_one_is_waited_for(async_device: Callable[[], Any], make_engine: Make) -> None:
    device = async_device()
    engine = make_engine(device=device, stream_interval=1000)
    engine.add_request([1, 2, 3], max_tokens=100)
    seen = []
    for _ in range(6):
        before = device.calls.get("replay", 0)
        seen.append((len(engine.step()[0].tokens), device.calls.get("replay", 0) - before))
    assert seen[1:] == [(1, 3), (2, 4), (4, 8), (8, 16), (16, 16)]


def test_what_follows_a_stopped_text_is_right(
    async_device: Callable[[], Any], make_engine: Make, run_all: Run, alone: Callable[..., list[int]]
) -> None:
    whole = alone([1, 2, 3])
    stop = whole[20]
    engine = make_engine("silu", device=async_device(), stream_interval=1000)
    first = engine.add_request([1, 2, 3], max_tokens=100, stop_token_ids=frozenset({stop}))
    run_all(engine)
    assert first.generated == whole[: whole.index(stop)]
    assert first.finish_reason == "stop"
    second = engine.add_request([7, 8], max_tokens=60)
    run_all(engine)
    assert second.generated == alone([7, 8], 60)


def test_texts_that_come_and_go_meanwhile(
    async_device: Callable[[], Any], make_engine: Make, run_all: Run, alone: Callable[..., list[int]]
) -> None:
    engine = make_engine("silu", device=async_device(), stream_interval=1000)
    first = engine.add_request([1, 2, 3], max_tokens=90)
    for _ in range(4):
        engine.step()
    second, third = engine.add_request([9, 4], max_tokens=30), engine.add_request([5], max_tokens=70)
    for _ in range(3):
        engine.step()
    engine.finish_request(third)
    run_all(engine)
    assert first.generated == alone([1, 2, 3], 90)
    assert second.generated == alone([9, 4], 30)
    assert third.generated == alone([5], 70)[: len(third.generated)]


@pytest.mark.parametrize("ahead", [True, False])
def test_a_text_that_goes_on_where_another_ended_has_blocks_of_its_own(
    ahead: bool,
    faulty: Any,
    async_device: Callable[[], Any],
    make_engine: Make,
    run_all: Run,
    alone: Callable[..., list[int]],
) -> None:
    prompt = list(range(1, 60))
    whole = [*prompt, *alone(prompt, 60)]
    engine = make_engine("silu", device=async_device() if ahead else faulty(), stream_interval=1000)
    engine.add_request(prompt, max_tokens=20)
    run_all(engine)
    engine.add_request([5] * 70, max_tokens=1)  # leaves free blocks in another order, and no row of its own
    run_all(engine)
    again = engine.add_request(whole[:78], max_tokens=30)  # its first row is the one that the device would make next
    run_all(engine)
    assert again.generated == whole[78:108]


def test_nothing_is_queued_beyond_the_cache(async_device: Callable[[], Any], make_engine: Make, run_all: Run) -> None:
    device = async_device()
    engine = make_engine(
        "silu", device=device, stream_interval=1000, kv_cache_size=2 * 2 * 2 * 64 * 2 * 32
    )  # two blocks
    text = engine.add_request([*range(1, 60), *range(40)], max_tokens=100)
    run_all(engine)
    assert len(text.tokens) == engine.max_model_len == 128
    assert device.calls["replay"] == 28


def test_tokens_that_are_read_while_the_device_works_count_as_moved(
    async_device: Callable[[], Any], make_engine: Make
) -> None:
    device = async_device()
    engine = make_engine("silu", device=device, stream_interval=1000)
    engine.add_request([1, 2, 3], max_tokens=60)
    moved: list[int] = []  # in steps without an upload
    before, uploads = 0, -1
    while engine.step():
        if device.calls["upload"] == uploads:
            moved.append(engine.moved_bytes - before)
        before, uploads = engine.moved_bytes, device.calls["upload"]
    assert moved
    assert min(moved) > 0
