"""Greedy bursts of several texts queued behind those that are waited for."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from bitnet_core.engine.kv_cache.cache import block_bytes
from bitnet_core.options.sampling import SamplingParams
from bitnet_hal.features import MAX_ASYNC_READ

Make = Callable[..., Any]
Run = Callable[[Any], None]
BLOCK = 2 * 2 * 2 * 64 * 2 * 32
"""Bytes of a block of the tiny model's cache, in all layers."""


@pytest.fixture
def alone(make_engine: Make, run_all: Run) -> Callable[..., list[int]]:
    """Tokens of a prompt on a device without the feature, alone."""
    engine = make_engine("silu")
    known: dict[tuple[int, ...], list[int]] = {}

    def generate(prompt: list[int], count: int) -> list[int]:
        if len(known.get(tuple(prompt), ())) < count:
            request = engine.add_request(prompt, max_tokens=count)
            run_all(engine)
            known[tuple(prompt)] = request.generated
        return known[tuple(prompt)][:count]

    return generate


def replays(engine: Any, device: Any) -> tuple[int, int]:
    """Tokens of the first text in a step, and replays of it."""
    before = device.calls.get("replay", 0)
    return len(engine.step()[0].tokens), device.calls.get("replay", 0) - before


def test_texts_that_are_as_long_never_wait(
    async_device: Callable[[], Any], make_engine: Make, run_all: Run, alone: Callable[..., list[int]]
) -> None:
    device = async_device()
    engine = make_engine("silu", device=device, stream_interval=1000)
    prompts = [[1, 2, 3], [9, 4], [5, 6, 7, 8], [11], [12, 13]]
    texts = [engine.add_request(prompt, max_tokens=80) for prompt in prompts]
    engine.step()
    downloads = device.calls["download"]
    assert [replays(engine, device) for _ in range(5)] == [(1, 3), (2, 4), (4, 8), (8, 16), (16, 16)]
    run_all(engine)
    assert [text.generated for text in texts] == [alone(prompt, 80) for prompt in prompts]
    assert device.calls["download"] == downloads
    assert device.calls["replay"] == 79  # nothing beyond the end


def test_a_text_that_ends_by_its_length_leaves_the_queued_burst(
    async_device: Callable[[], Any], make_engine: Make, run_all: Run, alone: Callable[..., list[int]]
) -> None:
    device = async_device()
    engine = make_engine("silu", device=device, stream_interval=1000)
    prompts, lengths = [[1, 2, 3], [9, 4], [5, 6, 7, 8], [11], [12, 13]], [90, 8, 90, 16, 90]
    texts = [engine.add_request(prompt, max_tokens=count) for prompt, count in zip(prompts, lengths, strict=True)]
    run_all(engine)
    assert [text.generated for text in texts] == [alone(*pair) for pair in zip(prompts, lengths, strict=True)]
    assert device.calls["replay"] == 89


def test_a_text_that_stops_leaves_those_that_go_on_in_the_queued_burst(
    async_device: Callable[[], Any], make_engine: Make, run_all: Run, alone: Callable[..., list[int]]
) -> None:
    device = async_device()
    engine = make_engine("silu", device=device, stream_interval=1000)
    prompts = [[1, 2, 3], [9, 4], [5, 6, 7, 8], [11], [12, 13], [14]]
    whole = alone(prompts[1], 80)
    at = max(n for n in range(80) if whole[n] not in whole[:n])
    stops = [(), (whole[at],), (), (), (), ()]
    texts = [
        engine.add_request(prompt, max_tokens=80, stop_token_ids=stop)
        if stop
        else engine.add_request(prompt, max_tokens=80)
        for prompt, stop in zip(prompts, stops, strict=True)
    ]
    run_all(engine)
    assert texts[1].generated == whole[:at]
    assert texts[1].finish_reason == "stop"
    assert [text.generated for text in texts[2:]] == [alone(prompt, 80) for prompt in prompts[2:]]
    assert device.calls["replay"] == 79  # the others lost nothing


def test_a_text_that_has_ended_does_not_write_into_blocks_that_were_its_own(
    async_device: Callable[[], Any], make_engine: Make, alone: Callable[..., list[int]]
) -> None:
    """They may be another's from the next queued burst on, for which its row is still among the device's."""
    engine = make_engine("silu", device=async_device(), stream_interval=1000)
    prompts = [[1, 2, 3], [9, 4], [5, 6, 7, 8], [11], [12, 13], [14]]
    whole = alone(prompts[1], 80)
    at = max(n for n in range(80) if whole[n] not in whole[:n])
    texts = [
        engine.add_request(prompt, max_tokens=120, stop_token_ids={whole[at]} if prompt == [9, 4] else ())
        for prompt in prompts
    ]
    block = -1
    while texts[1].finish_reason is None:
        block = texts[1].blocks[-1] if texts[1].blocks else block
        engine.step()
    assert engine.scheduler.multi_step.queued(engine.worker.runner()) > 0
    while engine.block_pool.allocate() != block:
        pass
    size = block_bytes(engine.config, engine.options.kv_cache_type)
    view = engine.cache().keys[0].part(block * size, size)
    given = memoryview(bytearray(b"\x3c" * view.nbytes))
    engine.device.upload(view, given)
    for _ in range(4):
        engine.step()
    found = bytearray(view.nbytes)
    engine.device.download(view, memoryview(found))
    assert found == given
    assert all(text.finish_reason is None for text in texts if text is not texts[1])


def test_a_text_that_comes_waits_for_what_is_queued_and_no_longer(
    async_device: Callable[[], Any], make_engine: Make
) -> None:
    engine = make_engine("silu", device=async_device(), stream_interval=1000)
    for prompt in ([1, 2, 3], [4, 5], [6]):
        engine.add_request(prompt, max_tokens=200)
    for _ in range(7):
        engine.step()
    late = engine.add_request([7, 8], max_tokens=5)
    assert [len(update.tokens) for update in engine.step()] == [16, 16, 16]
    engine.step()
    assert late.generated_tokens == 1


def test_what_is_queued_takes_no_longer_than_a_burst_where_time_is_short(
    async_device: Callable[[], Any], make_engine: Make
) -> None:
    engine = make_engine("silu", device=async_device(), stream_interval=1000)
    for prompt in ([1, 2, 3], [4, 5]):
        engine.add_request(prompt, max_tokens=200)
    for _ in range(6):
        engine.step()
    pace = engine.scheduler.multi_step.step_count
    assert pace.ahead(16, 100) == 16
    pace.token_seconds = 100 / 7  # seven in a tenth of a burst's time
    assert pace.ahead(16, 100) == pace.length(100, waiting=False, followed=True) == 7
    assert pace.length(100, waiting=False, followed=False) == 32
    pace.token_seconds = 1000 / 5  # five in a burst
    assert pace.ahead(16, 100) == pace.length(100, waiting=False, followed=True) == 1
    pace.token_seconds = 1000
    assert pace.ahead(1, 100) == 0
    assert pace.length(100, waiting=False, followed=True) == 1
    pace.seconds, pace.token_seconds = 0.02, 0.0016  # the server's, with many texts
    assert pace.ahead(16, 100) == pace.length(100, waiting=False, followed=True) == 6


def test_too_many_texts_are_read_as_before(
    async_device: Callable[[], Any], make_engine: Make, run_all: Run, monkeypatch: pytest.MonkeyPatch, alone: Any
) -> None:
    monkeypatch.setattr("bitnet_core.engine.run.multi_step_decoder.MAX_ASYNC_READ", 4 * 65 * 2)
    assert MAX_ASYNC_READ >= 4 * 65 * 256
    device = async_device()
    engine = make_engine("silu", device=device, stream_interval=1000)
    prompts = [[1, 2, 3], [9, 4], [5, 6, 7, 8]]
    texts = [engine.add_request(prompt, max_tokens=40) for prompt in prompts]
    run_all(engine)
    assert "read_async" not in device.calls
    assert [text.generated for text in texts] == [alone(prompt, 40) for prompt in prompts]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_any_course_gives_every_text_its_tokens(
    seed: int, async_device: Callable[[], Any], make_engine: Make, alone: Callable[..., list[int]]
) -> None:
    """Texts come, end by length or by a token, are cancelled, draw their tokens, share prefixes, and step back."""
    chance = random.Random(seed)
    engine = make_engine("silu", device=async_device(), stream_interval=1000, max_sequences=6, kv_cache_size=12 * BLOCK)
    prefix = [chance.randrange(1, 60) for _ in range(70)]
    texts: list[tuple[Any, list[int], int | None]] = []
    for _ in range(60):
        if chance.random() < 0.35 and len(texts) < 16:
            prompt = prefix[: chance.choice([0, 0, 66])] + [
                chance.randrange(1, 60) for _ in range(chance.randrange(1, 30))
            ]
            count, drawn = chance.choice([3, 10, 40, 90]), chance.random() < 0.05
            stop = chance.choice([None, alone(prompt, 90)[chance.randrange(30)]])
            sampling = SamplingParams(temperature=1.0, seed=1) if drawn else None
            text = engine.add_request(
                prompt, sampling, max_tokens=count, stop_token_ids=() if stop is None else (stop,)
            )
            if not drawn:
                texts.append((text, prompt, stop))
        if texts and chance.random() < 0.05:
            engine.finish_request(chance.choice(texts)[0])
        engine.step()
    while engine.step():
        pass
    for text, prompt, stop in texts:
        made = alone(prompt, 90)[: text.max_tokens]
        expected = made[: made.index(stop)] if stop in made else made
        assert text.generated == (expected[: text.generated_tokens] if text.finish_reason == "cancelled" else expected)
