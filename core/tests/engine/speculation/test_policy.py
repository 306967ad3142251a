"""The number of draft tokens follows measured acceptance and measured costs; what does not pay is switched off."""

from __future__ import annotations

import logging
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bitnet_core.engine.counters import zeros
from bitnet_core.engine.run.batch import verified_rows
from bitnet_core.engine.speculation.measurements import FIRST_DRAFT, MAX_DRAFT, Acceptance, StepCosts, interpolated
from bitnet_core.engine.speculation.policy import DraftPolicy

LOGGER = "bitnet_core.engine.speculation.report"


class Text(SimpleNamespace):
    """A request, as far as the policy is concerned."""

    def __init__(self) -> None:
        super().__init__(tokens=[0] * 10, draft_tokens=0, accepted_tokens=0, finish_reason=None)

    def __hash__(self) -> int:
        return id(self)


class Bench:
    """A policy with requests whose drafts are right with given probabilities, on a device whose steps of n rows take
    `fixed + n * per_row` seconds, or as costs says for some n."""

    def __init__(
        self,
        right: list[float],
        fixed: float,
        per_row: float,
        kind: str = "draft",
        rows: int = 8,
        costs: dict[int, float] | None = None,
        seed: int = 0,
    ) -> None:
        self.counts = zeros()
        self.policy: Any = DraftPolicy(kind, self.counts)
        self.texts = [Text() for _ in right]
        self.right = right
        self.fixed, self.per_row, self.rows = fixed, per_row, rows
        self.costs = costs
        self.random = np.random.default_rng(seed)
        self.seconds = 0.0
        self.sizes: list[int] = []  # draft tokens of each step

    def cost(self, rows: int) -> float:
        return interpolated(self.costs, [rows])[0] if self.costs else self.fixed + rows * self.per_row

    def step(self) -> None:
        limits = {}
        if self.policy.until_next(self.texts, self.rows) <= 0:
            limits = self.policy.limits(self.texts, dict.fromkeys(self.texts, MAX_DRAFT), self.rows)
        self.sizes.append(sum(limits.values()))
        rows = len(self.texts) + self.sizes[-1]
        self.seconds += self.cost(rows)
        if not limits:
            for text in self.texts:
                text.tokens.append(0)
            self.policy.stepped(len(self.texts), self.cost(rows), 1)
            return
        self.policy.drafted_for(limits, {text: [0] for text in limits}, 0.0)
        self.policy.choose_ahead(self.texts, self.rows)
        results = {}
        for text, right in zip(self.texts, self.right, strict=True):
            wrong = self.random.random(limits.get(text, 0)) >= right
            accepted = int(np.argmax(wrong)) if wrong.any() else len(wrong)
            text.tokens += [0] * (accepted + 1)
            if text in limits:
                results[text] = (limits[text], accepted)
        self.policy.verified(rows, self.cost(rows), results)

    def speed(self, steps: int) -> float:
        """Tokens per second against steps without drafts."""
        before = sum(len(text.tokens) for text in self.texts)
        self.seconds = 0.0
        for _ in range(steps):
            self.step()
        made = sum(len(text.tokens) for text in self.texts) - before
        return made / self.seconds * self.cost(len(self.texts)) / len(self.texts)


def test_likely_drafts_on_cheap_rows_are_long() -> None:
    bench = Bench([0.95], 1.0, 0.02)
    assert bench.speed(200) > 4
    assert np.mean(bench.sizes[-50:]) > 6


def test_drafts_are_as_long_as_they_pay() -> None:
    """With an acceptance of 0.6 and rows of a fifth of a step, two draft tokens are best: 1.96 tokens in 1.33."""
    bench = Bench([0.6], 0.8, 0.2)
    assert bench.speed(300) > 1.2
    assert 1 <= np.mean(bench.sizes[-200:]) <= 3


@pytest.mark.parametrize(("right", "per_row"), [(0.0, 0.05), (0.1, 0.5), (0.5, 1.0)])
def test_what_does_not_pay_costs_little(right: float, per_row: float, caplog: pytest.LogCaptureFixture) -> None:
    """At most a fiftieth of the time, and it is said once."""
    with caplog.at_level(logging.INFO, LOGGER):
        bench = Bench([right], 1 - per_row, per_row)
        assert bench.speed(400) > 0.98
    assert not any(bench.sizes[-100:])
    assert bench.counts["draft_stops"] == 1
    (record,) = (record for record in caplog.records if "does not pay" in record.message)
    assert f"of its {bench.texts[0].draft_tokens}" not in record.message  # said at the first pause


# steps of 1, 2, 4 and 8 rows: 2B-4T and Bonsai 2 27B as measured by cuda on an H200 (ms), and rows of a tenth and a
# fifth of a step
MEASURED = [
    {1: 0.876, 2: 1.295, 4: 1.364, 8: 1.455},
    {1: 8.56, 2: 10.1, 4: 10.5, 8: 11.3},
    {1: 1.0, 8: 1.7},
    {1: 1.0, 8: 2.4},
]


def best_fixed(costs: dict[int, float], right: float) -> float:
    """Return the tokens per second of the best fixed number of draft tokens against none."""
    tokens = [sum(right**depth for depth in range(count + 1)) for count in range(MAX_DRAFT + 1)]
    seconds = interpolated(costs, range(1, len(tokens) + 1))
    return max(some / step for some, step in zip(tokens, seconds, strict=True)) * costs[1]


@pytest.mark.parametrize("costs", MEASURED)
@pytest.mark.parametrize("right", [0.0, 0.3, 0.5, 0.7, 0.9, 0.95])
def test_the_speed_is_near_that_of_the_best_fixed_draft(costs: dict[int, float], right: float) -> None:
    """Within 5 %, without right drafts within 2 %, on average over texts of 1,500 steps."""
    speeds = [Bench([right], 0.0, 0.0, costs=costs, seed=seed).speed(1500) for seed in range(4)]
    assert np.mean(speeds) > (0.95 if right else 0.98) * best_fixed(costs, right)


def test_a_text_that_begins_to_repeat_is_drafted_again() -> None:
    bench = Bench([0.0], 0.9, 0.1)
    bench.speed(60)
    assert sum(bench.sizes[-20:]) <= 1
    bench.right = [0.95]
    bench.speed(60)
    assert bench.speed(60) > 2


def test_rows_go_to_the_likelier_texts() -> None:
    bench = Bench([0.95, 0.1], 1.0, 0.02)
    bench.speed(200)
    good, bad = bench.texts
    assert bench.speed(100) > 1.5
    assert good.draft_tokens > 4 * bad.draft_tokens > 0


def test_steps_without_drafts_are_measured_now_and_then() -> None:
    bench = Bench([0.95], 1.0, 0.02)
    bench.speed(17 + 1024 + 16 + 20)
    runs = "".join("x" if size else "-" for size in bench.sizes)
    assert runs == "-" * 17 + "x" * 1024 + "-" * 16 + "x" * 20


@pytest.mark.parametrize(("kind", "reason"), [("lookup", "repeat"), ("draft", "trained"), ("mtp", "other weights")])
def test_drafts_that_are_never_right_are_warned_about(kind: str, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, LOGGER):
        for _ in range(40):
            bench = Bench([0.0] * 3, 1.0, 0.0, kind)
            bench.speed(100)
            if bench.counts["draft_tokens"] >= 200:
                break
    assert not bench.counts["accepted_tokens"]
    (record,) = caplog.records
    assert reason in record.message


def test_a_full_step_has_no_drafts() -> None:
    bench = Bench([0.9] * 4, 1.0, 0.0, rows=4)
    bench.speed(20)
    assert not any(bench.sizes)
    assert bench.policy.until_next(bench.texts, 4) == math.inf


def test_searches_without_a_draft_become_rare_if_tokens_are_quick() -> None:
    for seconds, waits in ((0.001, [1, 2, 4, 8, 16, 32, 32]), (0.02, [1] * 7)):
        policy: Any = DraftPolicy("lookup", zeros())
        text = Text()
        for steps in (1, 16):
            policy.stepped(1, steps * seconds, steps)
        for wait in waits:
            assert policy.until_next([text], 8) == 0
            policy.drafted_for({text: 2}, {}, 0.0)
            assert policy.until_next([text], 8) == wait
            text.tokens += [0] * wait


def test_pauses_grow_until_speculation_is_off() -> None:
    state = Acceptance()
    pauses = []
    tokens = 0
    while state.next < math.inf:
        tokens = int(state.next)
        state.pause(tokens)
        pauses.append(state.next - tokens)
    assert pauses == [16, 32, 64, 128, 256, math.inf]


def test_accepted_drafts_are_followed_by_longer_ones() -> None:
    state = Acceptance()
    lengths = []
    for _ in range(4):
        lengths.append(state.most)
        state.verified(10, state.most, state.most)
    assert lengths == [FIRST_DRAFT, 4, MAX_DRAFT, MAX_DRAFT]
    before = state.probability(0.5, alone=True)
    state.verified(20, 7, 0)
    assert state.probability(0.5, alone=True) < before


def test_the_first_step_of_a_size_does_not_count() -> None:
    costs = StepCosts()
    costs.update(4, 100.0)
    assert costs.measured == {}
    for seconds in (2.0, 90.0, 4.0):  # one was interrupted
        costs.update(4, seconds)
    assert costs.measured == {4: 3.0}


def test_a_size_is_hoped_to_have_become_faster() -> None:
    """The longer ago it was measured; a new measurement then replaces the old ones."""
    costs = StepCosts()
    for rows in (32, 56) * 3:
        costs.update(rows, 1.0 + rows / 1000)
    assert costs.hoped()[56] == costs.measured[56]
    for _ in range(160):
        costs.update(56, 1.056)
    assert costs.hoped()[32] == pytest.approx(0.9 * costs.measured[32], rel=0.01)
    for _ in range(10000):
        costs.update(56, 1.056)
    assert costs.hoped()[32] == pytest.approx(0.7 * costs.measured[32])
    costs.update(32, 0.9)
    assert costs.hoped()[32] == costs.measured[32] == 0.9


def test_a_single_measurement_does_not_end_drafts() -> None:
    bench = Padded(0.7, {8: 0.777, 16: 1.035, 24: 1.9, 32: 1.225, 64: 1.709}, 0)
    for _ in range(50):
        bench.step()
        if len([size for size in bench.sizes if size]) == 2:
            bench.costs[24] = 1.204
    assert all(bench.sizes[-20:])


def test_a_slow_first_measurement_is_corrected() -> None:
    """32 rows are best; their first steps took longer than those of 56 rows."""
    bench = Padded(0.7, {8: 0.777, 16: 1.035, 24: 1.204, 32: 1.6, 40: 1.45, 48: 1.566, 56: 1.64, 64: 1.709}, 0)
    bench.speed(60)
    bench.costs[32] = 1.225
    bench.speed(500)
    assert np.median(bench.sizes[-100:]) == 24


def test_other_sizes_lie_between_measured_ones() -> None:
    points = {1: 1.0, 3: 2.0, 8: 7.0}
    assert interpolated(points, (1, 2, 3, 4, 9)) == [1.0, 1.5, 2.0, 3.0, 7.0]
    assert interpolated({4: 5.0}, [2]) == [5.0]


# milliseconds of deterministic steps of 8, 16, 24 and 32 rows by cuda on an H100 (2B-4T, Bonsai 8B), and steps of
# which a multiple of eight rows costs a third of one more
ROW_COSTS = {
    "2b4t": {8: 1.036, 16: 1.412, 24: 1.677, 32: 1.835, 64: 2.467},
    "bonsai-8b": {8: 1.697, 16: 2.557, 24: 3.682, 32: 4.697, 64: 8.757},
    "a third": {8: 1.0, 64: 1.0 + 7 / 3},
}
HOST = 0.15
"""Milliseconds of the host in a step with draft tokens."""


class Padded(Bench):
    """Eight texts, of whose steps one row more than eight costs as much as eight more."""

    def __init__(self, right: float, costs: dict[int, float], seed: int) -> None:
        super().__init__([right] * 8, 0.0, 0.0, rows=64, costs=costs, seed=seed)

    def cost(self, rows: int) -> float:
        (seconds,) = interpolated(self.costs or {}, [verified_rows(rows)])
        return seconds + HOST * (rows > len(self.texts))

    def best(self) -> float:
        """Tokens per second of the best fixed number of draft tokens against none."""
        tokens = [sum(self.right[0] ** depth for depth in range(count + 1)) for count in range(MAX_DRAFT + 1)]
        return max(some / self.cost(8 * (count + 1)) for count, some in enumerate(tokens)) * self.cost(8)


@pytest.mark.parametrize("shape", ROW_COSTS)
@pytest.mark.parametrize("right", [0.0, 0.5, 0.7, 0.9])
def test_eight_texts_draft_together_what_pays(shape: str, right: float) -> None:
    """Texts of 400 steps, and texts of 96 steps after others."""
    speeds: list[float] = []
    short: list[float] = []
    for seed in range(4):
        bench = Padded(right, ROW_COSTS[shape], seed)
        speeds.append(bench.speed(400))
        bench.texts = [Text() for _ in bench.texts]
        short.append(bench.speed(96))
    assert np.mean(speeds) > 0.96 * bench.best()
    assert np.mean(short) > 0.94 * bench.best()
    assert np.mean(speeds) > 0.98
    assert np.mean(short) > 0.97
    if (shape, right) == ("2b4t", 0.7):
        assert min(np.mean(speeds), np.mean(short)) > 1.25


def test_trials_of_several_texts_share_a_step() -> None:
    bench = Padded(0.0, ROW_COSTS["bonsai-8b"], 0)
    bench.speed(17)
    bench.sizes.clear()
    bench.speed(600)
    assert [size for size in bench.sizes if size] == [16] * 3 + [8] * 5


def test_a_choice_ahead_is_for_the_same_texts_and_within_their_limits() -> None:
    bench = Padded(0.9, ROW_COSTS["2b4t"], 0)
    bench.speed(100)
    first, *others = bench.texts
    bench.policy.choose_ahead(bench.texts, 64)
    most = dict.fromkeys(bench.texts, MAX_DRAFT) | {first: 1}
    bench.policy._best = None  # a choice now would fail
    limits = bench.policy.limits(bench.texts, most, 64)
    del bench.policy._best
    assert limits[first] == 1
    assert all(limits[text] > 3 for text in others)
    bench.policy.choose_ahead(bench.texts, 64)
    assert set(bench.policy.limits(others, most, 64)) == set(others)


def test_drafts_of_a_few_texts_only_are_not_worth_a_larger_step() -> None:
    """One of eight texts has a draft: a step of 16 rows for it alone would be slower than one without drafts."""
    bench = Padded(0.7, ROW_COSTS["2b4t"], 0)
    bench.speed(60)
    limits = bench.policy.limits(bench.texts, dict.fromkeys(bench.texts, MAX_DRAFT), 64)
    assert set(limits) == set(bench.texts)
    one, *others = bench.texts
    alone = {one: [0]}
    assert bench.policy.worthwhile(limits, alone, 8, 64) == {}
    assert bench.policy.until_next([one], 64) > 0
    most = {text: [0] * limits[text] for text in others}
    assert set(bench.policy.worthwhile(limits, most, 8, 64)) == set(others)
    everything = most | {one: [0] * limits[one]}
    assert bench.policy.worthwhile(limits, everything, 8, 64) is everything
