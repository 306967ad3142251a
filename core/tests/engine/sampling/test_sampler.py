"""Choosing tokens on the host."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
from bitnet_core.engine.sampling.sampler import Sampler
from bitnet_core.options.sampling import SamplingParams
from bitnet_hal.errors import GpuError, UsageError

LOGITS = np.log(np.array([0.05, 0.4, 0.1, 0.3, 0.15], np.float32))


def drawn(count: int = 4000, logits: np.ndarray = LOGITS, **params: Any) -> dict[int, float]:
    """Shares of the tokens in `count` draws."""
    sampler = Sampler(SamplingParams(temperature=params.pop("temperature", 1.0), seed=1, **params), len(logits))
    counts = Counter(sampler.choose(logits, ()) for _ in range(count))
    return {token: number / count for token, number in sorted(counts.items())}


def test_shares_follow_the_probabilities() -> None:
    assert drawn() == pytest.approx({0: 0.05, 1: 0.4, 2: 0.1, 3: 0.3, 4: 0.15}, abs=0.03)


def test_temperature_sharpens() -> None:
    squared = np.exp(2 * LOGITS) / np.exp(2 * LOGITS).sum()
    assert drawn(temperature=0.5) == pytest.approx(dict(enumerate(squared.tolist())), abs=0.03)


def test_top_k_keeps_the_largest() -> None:
    assert drawn(top_k=2) == pytest.approx({1: 4 / 7, 3: 3 / 7}, abs=0.03)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    assert drawn(top_p=0.75) == pytest.approx({1: 0.4 / 0.85, 3: 0.3 / 0.85, 4: 0.15 / 0.85}, abs=0.03)
    assert drawn(top_p=0.01) == {1: 1.0}


def test_min_p_drops_what_is_unlikely_against_the_best() -> None:
    assert drawn(min_p=0.3) == pytest.approx({1: 0.4 / 0.85, 3: 0.3 / 0.85, 4: 0.15 / 0.85}, abs=0.03)


def test_top_n_sigma_keeps_logits_near_the_largest() -> None:
    """Within so many standard deviations, which forbidden tokens do not count in; greedy choices stay as they are."""
    logits = np.array([4.0, 2.0, 0.0, -1.5, -2.0], np.float32)
    deviation = float(logits.astype(np.float64).std())
    assert {*drawn(logits=logits, temperature=9.0, top_n_sigma=2.1 / deviation)} == {0, 1}
    assert {*drawn(logits=logits, temperature=9.0, top_n_sigma=1.9 / deviation)} == {0}
    for off in (0, -1):
        assert {*drawn(logits=logits, temperature=9.0, top_n_sigma=off)} == {0, 1, 2, 3, 4}
    sampler = Sampler(SamplingParams(temperature=9.0, top_n_sigma=1.0, seed=1), 5)
    mask = np.array([0b00110], np.int32)  # tokens 1 and 2: mean 1, standard deviation 1
    assert {sampler.choose(logits, (), mask) for _ in range(200)} == {1}
    assert {Sampler(SamplingParams(top_n_sigma=0.1), 5).choose(logits, ()) for _ in range(9)} == {0}


def test_top_n_sigma_asks_for_all_logits_and_leaves_scores_alone() -> None:
    params = SamplingParams(temperature=1.0, top_n_sigma=1.0, logprobs=2, seed=1)
    sampler = Sampler(params, len(LOGITS))
    assert sampler.logits_request(()).k == 0
    assert not Sampler(SamplingParams(temperature=1.0, top_n_sigma=1.0), 5).only_draws
    assert Sampler(SamplingParams(top_n_sigma=1.0), 5).logits_request(()).k == 1  # greedy: the filter changes nothing
    sampler.choose(LOGITS, ())
    assert [token for token, _ in sampler.scores[0].top] == [1, 3]
    assert sampler.scores[0].top[0][1] == pytest.approx(np.log(0.4), abs=1e-5)


def test_filters_apply_to_what_the_one_before_left() -> None:
    """top-k 2 leaves 4/7 and 3/7, so top-p 0.57 leaves the first alone."""
    assert drawn(top_k=2, top_p=0.57) == {1: 1.0}


def test_greedy_takes_the_lowest_of_equal_logits() -> None:
    assert Sampler(SamplingParams(), 4).choose(np.array([0, 2, 2, 1], np.float32), ()) == 1


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits() -> None:
    sampler = Sampler(SamplingParams(repetition_penalty=2.0), 3)
    assert sampler.choose(np.array([4.0, 3.0, -1.0], np.float32), [0, 0]) == 1
    assert sampler.choose(np.array([-1.0, -1.5, -9.0], np.float32), [0]) == 1


def test_logit_bias() -> None:
    sampler = Sampler(SamplingParams(logit_bias={2: 100.0, 1: float("-inf")}), 5)
    assert sampler.choose(LOGITS, ()) == 2


def test_a_shortlist_gives_the_same_token_as_all_logits() -> None:
    rng = np.random.default_rng(0)
    full, short = (Sampler(SamplingParams(temperature=0.9, top_k=7, top_p=0.9, seed=3), 100) for _ in range(2))
    for _ in range(200):
        logits = rng.integers(0, 40, 100).astype(np.float32) / 8  # many equal ones
        ids = np.argsort(-logits, kind="stable")[:12].astype(np.int32)
        assert full.choose(logits, ()) == short.choose_from_list(ids, logits[ids])


def test_same_seed_same_tokens() -> None:
    def tokens(seed: int | None) -> list[int]:
        sampler = Sampler(SamplingParams(temperature=1.0, seed=seed), 5)
        return [sampler.choose(LOGITS, ()) for _ in range(50)]

    assert tokens(7) == tokens(7)
    assert tokens(7) != tokens(8)
    assert tokens(None) != tokens(None)


def test_a_drawn_seed_can_be_used_again() -> None:
    first = Sampler(SamplingParams(temperature=1.0), 5)
    again = Sampler(SamplingParams(temperature=1.0, seed=first.seed), 5)
    assert [first.choose(LOGITS, ()) for _ in range(50)] == [again.choose(LOGITS, ()) for _ in range(50)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_is_an_error(temperature: float) -> None:
    with pytest.raises(GpuError, match="not numbers"):
        Sampler(SamplingParams(temperature=temperature), 3).choose(np.array([0, np.nan, 1], np.float32), ())


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": -0.1},
        {"presence_penalty": 2.5},
        {"frequency_penalty": -3},
        {"logprobs": 21},
        {"top_p": 1.5},
        {"min_p": 2},
        {"repetition_penalty": 0},
        {"seed": -1},
        {"logit_bias": {1: float("nan")}},
        {"logit_bias": {1: 1e300}},
        {"logit_bias": {1: float("inf")}},
        {"temperature": 10**400},
        {"temperature": "hot"},
        {"top_k": 1.5},
        {"top_p": None},
        {"seed": 1.5},
        {"logprobs": "5"},
        {"logit_bias": [1]},
        {"logit_bias": {1.5: 1.0}},
        {"logit_bias": {1: "x"}},
    ],
)
def test_parameters_out_of_range(params: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        SamplingParams(**params)


def test_tiny_temperatures_take_the_largest() -> None:
    assert drawn(50, temperature=1e-300) == {1: 1.0}


def test_a_bias_against_everything_is_refused() -> None:
    sampler = Sampler(SamplingParams(logit_bias=dict.fromkeys(range(5), float("-inf"))), 5)
    with pytest.raises(UsageError, match="every token"):
        sampler.choose(LOGITS, ())


def test_bias_outside_the_vocabulary() -> None:
    with pytest.raises(UsageError, match=r"0\.\.4"):
        Sampler(SamplingParams(logit_bias={5: 1.0}), 5)


@pytest.mark.parametrize("pending", [False, True])
def test_another_process_goes_on_with_the_same_random_numbers(pending: bool) -> None:
    """Pickled, a sampler is its parameters and how many numbers it used; one that waits for its token is not used."""
    sampler = Sampler(SamplingParams(temperature=1.0, seed=3), len(LOGITS))
    expected = [Sampler.choose(sampler, LOGITS, ()) for _ in range(20)]
    again = Sampler(SamplingParams(temperature=1.0, seed=3), len(LOGITS))
    for _ in range(8):
        again.choose(LOGITS, ())
    if pending:
        again.uniform()
    sent = pickle.loads(pickle.dumps(again))  # noqa: S301 - our own
    assert [sent.choose(LOGITS, ()) for _ in range(6)] == expected[8:14]
    again.go_on(sent.drawn)
    assert [again.choose(LOGITS, ()) for _ in range(6)] == expected[14:]
