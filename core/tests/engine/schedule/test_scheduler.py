"""Several sequences, prompts in chunks, bursts, preemption, prefix reuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from bitnet_core.engine.capacity import widest_chunk
from bitnet_core.engine.schedule import prompt_steps, scheduler
from bitnet_core.model.config import Experts
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.sampling import SamplingParams
from bitnet_hal.device import DeviceType
from bitnet_hal.errors import GpuError, UsageError
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyDevice

Make = Callable[..., Any]
Run = Callable[[Any], None]


@pytest.fixture
def alone(make_engine: Make, run_all: Run) -> Callable[..., list[int]]:
    """Tokens of a prompt that has an engine for itself."""

    def generate(tokens: list[int], sampling: SamplingParams | None = None, max_tokens: int = 40) -> list[int]:
        engine = make_engine("silu")
        request = engine.add_request(tokens, sampling, max_tokens=max_tokens)
        run_all(engine)
        return list(request.generated)

    return generate


def test_greedy_bursts_take_the_largest_logits(make_engine: Make, run_all: Run, tiny: Any) -> None:
    engine = make_engine("silu", kv_cache_type="f32")
    request = engine.add_request(tiny.PROMPT[:5], max_tokens=60)
    run_all(engine)
    logits = engine.logits(request.tokens[:-1])
    assert request.generated == logits[4:].argmax(axis=1).tolist()
    assert request.finish_reason == "length"


def test_greedy_decoding_uploads_nothing_while_it_goes_on(faulty: Any, make_engine: Make, run_all: Run) -> None:
    device = faulty()
    engine = make_engine(device=device)
    engine.add_request([1, 2, 3], max_tokens=50)
    engine.step()
    engine.step()
    uploads, downloads = device.calls["upload"], device.calls["download"]
    replays = device.calls["replay"]
    run_all(engine)
    assert device.calls["replay"] - replays == 48
    assert device.calls["upload"] == uploads
    assert device.calls["download"] - downloads <= 48


def test_launches_are_counted_in_replays_too(make_engine: Make, run_all: Run) -> None:
    engine = make_engine("silu")
    engine.add_request([1, 2, 3], max_tokens=11)
    run_all(engine)
    counts = engine.kernel_launches
    assert counts["embed_rows"] == 11  # the prompt gives the first token
    assert counts["attention"] == 22
    assert counts["argmax_advance"] == 10


def test_sequences_do_not_disturb_each_other(
    make_engine: Make, run_all: Run, tiny: Any, alone: Callable[..., list[int]]
) -> None:
    sampled = SamplingParams(temperature=0.8, top_p=0.95, seed=5)
    short = SamplingParams(temperature=0.8, top_k=10, seed=6)
    requests = [(tiny.PROMPT[:70], None), (tiny.PROMPT[10:13], sampled), (tiny.PROMPT[20:60], short), ([3], None)]
    expected = [alone(tokens, sampling) for tokens, sampling in requests]
    engine = make_engine("silu", prefill_chunk=16, max_sequences=3)
    sequences = []
    for tokens, sampling in requests:
        sequences.append(engine.add_request(tokens, sampling, max_tokens=40))
        engine.step()
    run_all(engine)
    assert [request.generated for request in sequences] == expected


@pytest.mark.parametrize("sampling", [None, SamplingParams(temperature=0.8, seed=5)])
def test_a_full_cache_makes_the_last_sequence_wait(
    make_engine: Make, run_all: Run, tiny: Any, alone: Callable[..., list[int]], sampling: SamplingParams | None
) -> None:
    prompts = [tiny.PROMPT[start : start + 50] for start in (0, 30, 60)]
    expected = [alone(tokens, sampling, 60) for tokens in prompts]
    engine = make_engine("silu", kv_cache_size=4 * 2 * 2 * 64 * 2 * 32)  # four blocks of 64 rows, 2 heads, 32 bytes
    sequences = [engine.add_request(tokens, sampling, max_tokens=60) for tokens in prompts]
    run_all(engine)
    assert engine.max_model_len == 256
    assert engine.figures()["preemptions"] > 0
    assert [request.generated for request in sequences] == expected


def test_equal_prefixes_are_computed_once(make_engine: Make, run_all: Run, tiny: Any) -> None:
    engine = make_engine("silu")
    first = engine.add_request(tiny.PROMPT, max_tokens=10)
    run_all(engine)
    again = engine.add_request(tiny.PROMPT, max_tokens=10)
    other = engine.add_request([*tiny.PROMPT[:64], 1, *tiny.PROMPT[65:]], max_tokens=10)
    run_all(engine)
    assert (first.cached_tokens, again.cached_tokens, other.cached_tokens) == (0, 128, 64)
    assert again.generated == first.generated


def test_the_last_token_of_a_known_prompt_is_computed_again(make_engine: Make, run_all: Run, tiny: Any) -> None:
    engine = make_engine("silu")
    first = engine.add_request(tiny.PROMPT[:128], max_tokens=5)
    run_all(engine)
    again = engine.add_request(tiny.PROMPT[:128], max_tokens=5)
    run_all(engine)
    assert again.cached_tokens == 64
    assert again.generated == first.generated


def test_stop_ids_end_a_sequence_and_are_not_part_of_it(
    make_engine: Make, run_all: Run, alone: Callable[..., list[int]]
) -> None:
    tokens = alone([1, 2, 3])
    stop = tokens[20]
    engine = make_engine("silu")
    request = engine.add_request([1, 2, 3], max_tokens=40, stop_token_ids=[stop])
    run_all(engine)
    assert request.finish_reason == "stop"
    assert request.generated == tokens[: tokens.index(stop)]


def test_the_context_ends_a_sequence(make_engine: Make, run_all: Run, tiny: Any) -> None:
    engine = make_engine("silu", context=100)
    request = engine.add_request(tiny.PROMPT[:90], max_tokens=50)
    run_all(engine)
    assert (len(request.tokens), request.finish_reason) == (100, "length")


def test_finished_sequences_give_everything_back(make_engine: Make, run_all: Run, tiny: Any) -> None:
    engine = make_engine("silu", max_sequences=2)
    sequences = [engine.add_request(tiny.PROMPT[: 10 * n], max_tokens=30) for n in range(1, 5)]
    engine.step()
    engine.finish_request(sequences[0])
    engine.finish_request(sequences[3])
    assert (sequences[0].finish_reason, sequences[3].finish_reason) == ("cancelled", "cancelled")
    run_all(engine)
    assert engine.block_pool.available == engine.block_pool.total
    assert not engine.scheduler.running
    assert not engine.scheduler.waiting


@pytest.mark.parametrize("sampling", [None, SamplingParams(temperature=1.0, seed=0), SamplingParams(1.0, 5, seed=0)])
def test_nan_logits_are_an_error_never_garbage(
    make_engine: Make, tiny: Any, monkeypatch: pytest.MonkeyPatch, sampling: SamplingParams | None
) -> None:
    table = tiny.TinySource(tiny.CONFIGS["silu"]).dense("token_embd")
    broken = table.data.copy()
    broken[7].view(np.float32)[0] = np.nan
    monkeypatch.setattr(
        tiny.TinySource, "dense", lambda self, name: type(table)("f32", table.rows, table.columns, broken)
    )
    engine = make_engine("silu")
    request = engine.add_request([1, 2], sampling, max_tokens=4)
    (update,) = engine.step()
    assert (update.request, update.tokens, request.finish_reason) == (request, (), "error")
    with pytest.raises(GpuError, match="not numbers"):
        raise request.error
    assert engine.step() == []


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "empty"),
        ([64], r"0\.\.63"),
        ([-1], r"0\.\.63"),
        ([0] * 256, "256 tokens"),
        ([0] * 1000, "1000 tokens"),
        ([1.5], "whole numbers"),
        ("text", "whole numbers"),
        (None, "whole numbers"),
    ],
)
def test_prompts_that_cannot_be(make_engine: Make, tokens: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_engine().add_request(tokens)


@pytest.mark.parametrize(
    "wrong", [{"max_tokens": value} for value in (1.5, float("nan"), "9", None)] + [{"stop_token_ids": [1.5]}]
)
def test_limits_of_wrong_types_are_refused_before_neighbours_see_them(make_engine: Make, wrong: dict[str, Any]) -> None:
    engine = make_engine()
    neighbour = engine.add_request([1, 2], max_tokens=4)
    with pytest.raises(UsageError, match="whole number"):
        engine.add_request([3], **wrong)
    while engine.step():
        pass
    assert neighbour.finish_reason == "length"


@pytest.mark.parametrize(
    "options",
    [
        {"kv_cache_type": "f8"},
        {"context": 1},
        {"context": 257},
        {"kv_cache_size": 100},
        {"eviction": "mru"},
        {"max_sequences": 0},
        {"max_sequences": 1.5},
        {"max_sequences": 10**30},
        {"context": "9"},
        {"kv_cache_size": float("nan")},
        {"stream_interval": float("nan")},
        {"stream_interval": float("inf")},
    ],
)
def test_options_that_cannot_be(make_engine: Make, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        make_engine(**options)


@pytest.mark.parametrize("kv_cache_type", ["f16", "int8"])
def test_smaller_caches_stay_close_to_f32(make_engine: Make, tiny: Any, kv_cache_type: str) -> None:
    exact = make_engine("silu", kv_cache_type="f32").logits(tiny.PROMPT)
    close = make_engine("silu", kv_cache_type=kv_cache_type).logits(tiny.PROMPT)
    cosine = (exact * close).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(close, axis=1)
    assert cosine.min() > 0.97
    assert (exact.argmax(1) == close.argmax(1)).mean() > 0.9


@pytest.mark.parametrize(("options", "rows"), [({}, 256), ({"prefill_chunk": 100}, 100), ({"max_sequences": 300}, 300)])
def test_prompt_steps_on_a_cpu(make_engine: Make, options: dict[str, int], rows: int) -> None:
    assert make_engine("silu", **options).scheduler.chunk == rows


def test_prompt_scratch_grows_with_the_prompts(make_engine: Make, tiny: Any) -> None:
    engine = make_engine("silu", prefill_chunk=100)
    for length, room in ((5, 8), (40, 64), (3, 64), (90, 100), (130, 100)):
        engine.add_request(tiny.PROMPT[-length:], max_tokens=1)
        while engine.step():
            pass
        assert engine._ready()._prompts._scratch.rows == room


@pytest.mark.parametrize(("threads", "rows"), [(1, 64), (4, 128), (16, 256)])
def test_fewer_threads_take_shorter_prompt_steps(make_engine: Make, threads: int, rows: int) -> None:
    engine = make_engine("silu")
    info = replace(engine.device.info, extra={"threads": threads})
    assert widest_chunk(engine.config, info, 512, 32) == rows


def test_rows_that_divide_among_experts_take_long_prompt_steps(make_engine: Make) -> None:
    engine = make_engine("silu")
    info = replace(engine.device.info, extra={"threads": 1})
    assert widest_chunk(replace(engine.config, experts=Experts(8, 2, 7.0)), info, 512, 32) == 256


@pytest.mark.parametrize(("gigabytes", "rows"), [(24, 1024), (80, 4096)])
def test_a_gpu_with_much_memory_takes_longer_prompt_steps(make_engine: Make, gigabytes: int, rows: int) -> None:
    engine = make_engine("silu")
    info = replace(engine.device.info, type=DeviceType.GPU, total_memory=gigabytes << 30)
    assert widest_chunk(engine.config, info, EngineOptions().prefill_chunk, 32) == rows


@pytest.mark.parametrize(("speed", "rows"), [(0, 1024), (5_000, 1024), (100_000, 2048), (200_000, 4096)])
def test_a_step_that_also_decodes_has_as_many_rows_as_the_device_computes_in_its_time(
    make_engine: Make, speed: int, rows: int
) -> None:
    own = make_engine("silu").scheduler.prompts
    own._keep_speed(4096, 10.0)  # the first step compiles
    own._keep_speed(speed, 1.0)
    own._keep_speed(100, 1.0)  # too small to tell
    assert own._shared_rows() == rows


def test_a_step_that_begins_behind_another_tells_no_speed(
    make_engine: Make, run_all: Run, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is read after the first part of a prompt, so that the time of the second is that of both."""
    monkeypatch.setattr(prompt_steps, "_SHARED_ROWS", 16)
    engine = make_engine("silu", prefill_chunk=32)
    engine.add_request(tiny.PROMPT[:60], max_tokens=1)
    run_all(engine)
    assert engine.scheduler.prompts._rows_per_second == 0
    engine.add_request(tiny.PROMPT[60:90], max_tokens=1)
    run_all(engine)
    assert engine.scheduler.prompts._rows_per_second > 0


def test_texts_that_go_on_wait_for_shorter_prompt_steps(
    make_engine: Make, run_all: Run, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_steps, "_SHARED_ROWS", 16)
    monkeypatch.setattr(prompt_steps, "SHARED_SECONDS", 0.0)
    engine = make_engine("silu", prefill_chunk=100)
    first, computed = engine.add_request(tiny.PROMPT[:90], max_tokens=20), []
    engine.step()
    assert first.generated_tokens == 1  # alone: at once
    second = engine.add_request(tiny.PROMPT[30:70], max_tokens=2)
    while not second.generated_tokens:
        engine.step()
        computed.append(second.computed)
    assert computed == [15, 30, 40]
    run_all(engine)


def first_tokens(engine: Any, tiny: Any) -> list[list[int]]:
    """Return the numbers of tokens of six requests that came together, after each step until all have begun."""
    requests = [engine.add_request(tiny.PROMPT[i : i + 20], max_tokens=8) for i in range(6)]
    made = []
    while not all(request.generated_tokens for request in requests):
        engine.step()
        made.append([request.generated_tokens for request in requests])
    return made


def test_a_cpu_decodes_in_the_steps_of_prompts(make_engine: Make, run_all: Run, tiny: Any) -> None:
    engine = make_engine("silu", prefill_chunk=40)
    assert first_tokens(engine, tiny) == [
        [1, 1, 0, 0, 0, 0],
        [2, 2, 1, 0, 0, 0],
        [3, 3, 2, 1, 1, 0],
        [4, 4, 3, 2, 2, 1],
    ]
    run_all(engine)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_steps_of_prompts_and_of_texts_that_go_on_take_turns_on_a_gpu(
    make_engine: Make, run_all: Run, tiny: Any, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    """There a row that decodes among those of prompts takes longer than in a step of its own."""
    gpu = replace(numpy_info(), type=DeviceType.GPU)
    engine = make_engine("silu", device=NumpyDevice(gpu), prefill_chunk=40)
    monkeypatch.setattr(scheduler, "SHARED_SECONDS", 60.0)
    assert first_tokens(engine, tiny) == [[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]]
    run_all(engine)
    monkeypatch.setattr(scheduler, "SHARED_SECONDS", 0.0)
    params = SamplingParams(temperature=temperature, seed=1)
    made = []
    requests = [engine.add_request(tiny.PROMPT[30 + i : 50 + i], params, max_tokens=8) for i in range(6)]
    while not all(request.generated_tokens for request in requests):
        engine.step()
        made.append([request.generated_tokens for request in requests])
    turns = [[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0], [2, 2, 2, 2, 0, 0], [2, 2, 2, 2, 1, 1]]
    assert made == turns
    run_all(engine)
    alone = make_engine("silu")
    beside = [alone.add_request(r.tokens[: r.prompt_tokens], params, max_tokens=8) for r in requests]
    run_all(alone)
    assert [r.generated for r in requests] == [r.generated for r in beside]
