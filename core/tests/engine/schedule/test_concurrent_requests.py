"""Many texts at a time: rows of different needs in one step, errors that stay with their text, shared prompts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bitnet_core
import numpy as np
import pytest
from bitnet_core.engine.sampling.logprobs import token_score
from bitnet_core.engine.sampling.sampler import Sampler
from bitnet_core.engine.schedule import multi_step
from bitnet_core.options.sampling import SamplingParams
from bitnet_hal.errors import DeviceLostError, UsageError

Make = Callable[..., Any]
Run = Callable[[Any], None]

VOCAB = 64


class Downloads:
    """Sizes in bytes of what a device gave the host."""

    def __init__(self, device: Any) -> None:
        self.sizes: list[int] = []
        device.before["download"] = lambda view, _: self.sizes.append(view.nbytes)


@pytest.fixture
def texts(make_engine: Make, run_all: Run, tiny: Any) -> Callable[..., list[list[int]]]:
    """Tokens of several requests, each with an engine for itself."""

    def generate(*requests: tuple[list[int], SamplingParams | None]) -> list[list[int]]:
        made = []
        for tokens, sampling in requests:
            engine = make_engine("silu")
            made.append(engine.add_request(tokens, sampling, max_tokens=20))
            run_all(engine)
        return [request.generated for request in made]

    return generate


def test_rows_are_partitioned_by_what_they_need(
    faulty: Any, make_engine: Make, run_all: Run, texts: Callable[..., list[list[int]]]
) -> None:
    """Seven greedy rows and a shortlisted one never download logits; a row whose logits are raised downloads its own
    alone."""
    requests: list[tuple[list[int], SamplingParams | None]] = [([token], None) for token in range(1, 8)]
    requests.append(([9], SamplingParams(temperature=0.9, top_k=5, seed=1)))
    full = ([11], SamplingParams(temperature=0.9, seed=2, logit_bias={3: 1.0}))
    expected = texts(*requests, full)
    device = faulty()
    downloads = Downloads(device)
    engine = make_engine("silu", device=device)
    sequences = [engine.add_request(tokens, sampling, max_tokens=20) for tokens, sampling in requests]
    run_all(engine)
    assert [request.generated for request in sequences] == expected[:-1]
    assert max(downloads.sizes) <= 8 * 4 * (multi_step.MAX_STEPS + 1) * 16
    assert 4 * VOCAB * 8 not in downloads.sizes
    downloads.sizes.clear()
    sequences = [engine.add_request(tokens, sampling, max_tokens=20) for tokens, sampling in [full, *requests]]
    run_all(engine)
    assert [request.generated for request in sequences] == [expected[-1], *expected[:-1]]
    assert downloads.sizes.count(4 * VOCAB) == 20


def test_prompts_do_not_download_logits_where_a_shortlist_decides(
    faulty: Any, make_engine: Make, run_all: Run, tiny: Any
) -> None:
    device = faulty()
    downloads = Downloads(device)
    engine = make_engine("silu", device=device)
    engine.add_request(tiny.PROMPT[:40], max_tokens=1)
    engine.add_request(tiny.PROMPT[:30], SamplingParams(temperature=1.0, top_k=3, seed=1), max_tokens=1)
    run_all(engine)
    assert downloads.sizes == [2 * 8 * 16]  # ids and values at once


def test_without_shortlists_everything_still_works(
    faulty: Any, make_engine: Make, run_all: Run, texts: Callable[..., list[list[int]]]
) -> None:
    requests = [([1, 2], None), ([3], SamplingParams(temperature=0.9, top_k=5, seed=1))]
    engine = make_engine("silu", device=faulty(kernels=frozenset()))
    sequences = [engine.add_request(tokens, sampling, max_tokens=20) for tokens, sampling in requests]
    run_all(engine)
    assert [request.generated for request in sequences] == texts(*requests)


class Poison:
    """A constraint that fails at its third token."""

    def __init__(self) -> None:
        self.left = 2

    def mask(self) -> Any:
        if not self.left:
            raise ValueError("the grammar is broken")
        self.left -= 1
        return np.full(2, -1, np.int32)

    def accept(self, token: int) -> bool:
        return True


def test_a_poisoned_request_ends_itself_only(
    make_engine: Make, run_all: Run, texts: Callable[..., list[list[int]]]
) -> None:
    engine = make_engine("silu")
    good = engine.add_request([1, 2], max_tokens=20)
    bad = engine.add_request([3], constraint=Poison(), max_tokens=20)
    worse = engine.add_request(
        [4], SamplingParams(logit_bias=dict.fromkeys(range(VOCAB), float("-inf"))), max_tokens=20
    )
    run_all(engine)
    assert [good.generated] == texts(([1, 2], None))
    assert (len(bad.generated), bad.finish_reason, str(bad.error)) == (2, "error", "the grammar is broken")
    assert (worse.generated, worse.finish_reason) == ([], "error")
    assert isinstance(worse.error, UsageError)
    assert engine.block_pool.owned == 0


class Only:
    """A constraint that allows some tokens, `count` times."""

    def __init__(self, allowed: list[int], count: int) -> None:
        self.allowed, self.count = allowed, count

    def mask(self) -> Any:
        bits = np.zeros(VOCAB, np.uint8)
        bits[self.allowed] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    def accept(self, token: int) -> bool:
        self.count -= 1
        return self.count > 0


@pytest.mark.parametrize("sampling", [None, SamplingParams(temperature=2.0, seed=1), SamplingParams(2.0, 3, seed=1)])
def test_masks_leave_only_what_is_allowed(make_engine: Make, run_all: Run, sampling: SamplingParams | None) -> None:
    engine = make_engine("silu")
    bound = engine.add_request([1, 2], sampling, constraint=Only([5, 33, 63], 7), max_tokens=20)
    engine.add_request([1, 2], max_tokens=20)
    run_all(engine)
    assert set(bound.generated) <= {5, 33, 63}
    assert (len(bound.generated), bound.finish_reason) == (7, "stop")


def test_a_mask_that_forbids_everything_is_an_error(make_engine: Make, run_all: Run) -> None:
    engine = make_engine("silu")
    request = engine.add_request([1], constraint=Only([], 1))
    run_all(engine)
    assert request.finish_reason == "error"


def test_equal_prompts_that_arrive_together_are_computed_once(make_engine: Make, run_all: Run, tiny: Any) -> None:
    engine = make_engine("silu")
    sequences = [engine.add_request(tiny.PROMPT, max_tokens=5) for _ in range(4)]
    other = engine.add_request([*tiny.PROMPT[:64], 1, *tiny.PROMPT[65:]], max_tokens=5)
    engine.step()
    assert [request.req_index >= 0 for request in (*sequences, other)] == [True, False, False, False, False]
    run_all(engine)
    assert [request.cached_tokens for request in sequences] == [0, 128, 128, 128]
    assert other.cached_tokens == 64
    assert len({tuple(request.generated) for request in sequences}) == 1
    figures = engine.figures()
    assert (figures["prefix_queries"], figures["prefix_hits"]) == (5 * len(tiny.PROMPT), 3 * 128 + 64)


def test_different_prompts_do_not_wait_for_each_other(make_engine: Make, tiny: Any) -> None:
    engine = make_engine("silu")
    engine.add_request(tiny.PROMPT, max_tokens=5)
    other = engine.add_request(tiny.PROMPT[1:], max_tokens=5)
    engine.step()
    assert other.req_index >= 0


def test_what_was_reused_does_not_change_when_a_text_steps_back(make_engine: Make, run_all: Run, tiny: Any) -> None:
    engine = make_engine("silu", kv_cache_size=4 * 2 * 2 * 64 * 2 * 32)
    sequences = [engine.add_request(tiny.PROMPT[start : start + 50], max_tokens=60) for start in (0, 30, 60)]
    run_all(engine)
    figures = engine.figures()
    assert figures["preemptions"] > 0
    assert [request.cached_tokens for request in sequences] == [0, 0, 0]
    assert (figures["prompt_tokens"], figures["generated_tokens"], figures["prefix_hits"]) == (150, 180, 0)


def test_bursts_are_short_while_a_text_waits(make_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine("silu", max_sequences=1, stream_interval=100)
    engine.add_request([1], max_tokens=200)
    for _ in range(6):
        engine.step()
    assert engine.scheduler.multi_step.step_count.last == multi_step.MAX_STEPS
    engine.add_request([2], max_tokens=5)
    engine.scheduler.multi_step.step_count.token_seconds = 0.01
    (update,) = engine.step()
    assert len(update.tokens) == 2


def test_the_burst_time_is_an_option(make_engine: Make) -> None:
    engine = make_engine("silu", stream_interval=1e-9)
    request = engine.add_request([1], max_tokens=5)
    while request.finish_reason is None:
        assert len(engine.step()[0].tokens) == 1
    with pytest.raises(UsageError, match="stream_interval"):
        make_engine(stream_interval=0)


def test_a_text_that_outgrows_the_next_device_tells(faulty: Any, make_engine: Make, tiny: Any) -> None:
    first, second = faulty(), faulty(index=1, max_binding=8000)
    engine = make_engine("silu", device=first, reopen=lambda _: second, context=120)
    request = engine.add_request(tiny.PROMPT[:70], max_tokens=40)
    engine.step()

    def lose(*_: Any) -> None:
        raise DeviceLostError("gone", backend="numpy")

    first.before["replay"] = lose
    assert [(update.request, update.tokens) for update in engine.step()] == [(request, ())]
    assert request.finish_reason == "length"


def test_all_texts_can_be_failed(make_engine: Make) -> None:
    engine = make_engine("silu", max_sequences=1)
    sequences = [engine.add_request([token]) for token in (1, 2)]
    engine.step()
    error = DeviceLostError("gone", backend="numpy")
    assert {update.request for update in engine.fail_all(error)} == set(sequences)
    assert all(request.error is error for request in sequences)
    assert engine.step() == []


def test_a_prompt_is_scored_beside_others(
    make_engine: Make, run_all: Run, tiny: Any, texts: Callable[..., list[list[int]]]
) -> None:
    engine = make_engine("silu")
    expected = engine.logits(tiny.PROMPT)
    rows: dict[int, Any] = {}
    beside = engine.add_request([1, 2], max_tokens=20)
    scored = engine.add_request(tiny.PROMPT, max_tokens=0, scored=lambda at, logits: rows.update({at: logits}))
    more = engine.add_request(tiny.PROMPT[:70], max_tokens=3, scored=lambda at, logits: None)
    run_all(engine)
    assert [beside.generated, more.generated] == [*texts(([1, 2], None)), texts((tiny.PROMPT[:70], None))[0][:3]]
    assert (scored.generated, scored.finish_reason, scored.cached_tokens) == ([], "length", 0)
    np.testing.assert_allclose(np.stack([rows[at] for at in range(130)]), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "params",
    [
        {"repetition_penalty": 1.3},
        {"presence_penalty": 0.5, "frequency_penalty": 0.7},
        {"repetition_penalty": 1.1, "logit_bias": {3: -2.0, 5: float("-inf")}, "frequency_penalty": 0.1},
    ],
)
@pytest.mark.parametrize("drawing", [{}, {"temperature": 0.8, "top_k": 6, "top_p": 0.9, "seed": 4}])
def test_lowered_logits_are_chosen_from_a_shortlist(params: dict[str, Any], drawing: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    sampling = SamplingParams(**params, **drawing)
    full, short = (Sampler(sampling, 300, prompt_tokens=4) for _ in range(2))
    tokens = [1, 2, 3, 1]
    for _ in range(100):
        logits = rng.integers(-20, 20, 300).astype(np.float32) / 8
        want = short.logits_request(tokens)
        assert 0 < want.k <= 256
        assert not want.rest
        ids = np.argsort(-logits, kind="stable")[: want.k].astype(np.int32)
        token = full.choose(logits, tokens)
        assert short.choose_from_list(ids, logits[ids], tokens) == token
        tokens.append(token)


def test_raising_parameters_need_all_logits() -> None:
    for params in ({"repetition_penalty": 0.9}, {"presence_penalty": -1.0}, {"logit_bias": {1: 1.0}}):
        assert Sampler(SamplingParams(**params), 9).logits_request([1]).k == 0


def test_penalties_are_for_generated_tokens() -> None:
    """OpenAI's: once for having come, and once more for each time; the prompt does not count."""
    sampler = Sampler(SamplingParams(presence_penalty=1.0, frequency_penalty=0.5), 4, prompt_tokens=2)
    logits = np.array([3.0, 2.9, 2.2, 0.0], np.float32)
    assert sampler.choose(logits, [0, 0]) == 0
    assert sampler.choose(logits, [0, 0, 0]) == 1
    np.testing.assert_allclose(sampler._adjusted(logits, [0, 0, 0, 1, 1]), [1.5, 0.9, 2.2, 0.0], rtol=1e-6)


def test_log_probabilities() -> None:
    logits = np.log(np.array([0.1, 0.2, 0.3, 0.4], np.float32))
    sampler = Sampler(SamplingParams(logprobs=2), 4)
    assert sampler.choose(logits, []) == 3
    (score,) = sampler.scores
    assert score.logprob == pytest.approx(np.log(0.4))
    assert [token for token, _ in score.top] == [3, 2]
    assert [value for _, value in score.top] == pytest.approx([np.log(0.4), np.log(0.3)])
    assert token_score(logits, 0, 0).top == ()


def test_top_p_0_takes_the_likeliest() -> None:
    sampler = Sampler(SamplingParams(temperature=1.0, top_p=0, seed=1), 4)
    assert {sampler.choose(np.array([0, 1, 3, 2], np.float32), []) for _ in range(50)} == {2}


def test_sequences_and_cache_are_options_of_load() -> None:
    with bitnet_core.load(
        None, "numpy", max_sequences=3, kv_cache_size=4 << 20, eviction="lfu", stream_interval=0.5
    ) as model:
        options = model.engine.options
        assert (options.max_sequences, options.kv_cache_size, options.eviction, options.stream_interval) == (
            3,
            4 << 20,
            "lfu",
            0.5,
        )
        assert model.engine.memory()["kv_cache_bytes"] <= 4 << 20
    with pytest.raises(UsageError, match="max_sequences"):
        bitnet_core.load(None, "numpy", max_sequences=0)


def test_a_long_limit_does_not_keep_the_cache_from_shrinking(make_engine: Make) -> None:
    engine = make_engine("silu", max_sequences=8)
    engine.add_request([1, 2], max_tokens=10**6)
    before = engine.memory()["cache_blocks"]
    assert engine.shrink_cache()
    assert engine.memory()["cache_blocks"] < before
