"""Benchmarks of speculation."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from bitnet_core.engine.speculation.prompt_lookup import PromptLookup
from bitnet_core.engine.speculation.simulated import SimulatedDrafter
from bitnet_core.measure import speculation
from bitnet_core.measure.speculation import measure_speculation
from bitnet_hal.errors import UsageError

Make = Callable[..., Any]


class Text:
    """A request, as far as the drafter is concerned."""

    def __init__(self, prompt: list[int], generated: int) -> None:
        self.tokens = [*prompt, *[0] * generated]
        self.prompt_tokens = len(prompt)
        self.generated_tokens = generated


def test_draft_tokens_are_as_often_right_as_they_should_be() -> None:
    text = list(range(400))
    for probability in (0.0, 0.3, 1.0):
        drafter = SimulatedDrafter(PromptLookup(), {(5, 6): text}, probability, 1000)
        request: Any = Text([5, 6], 100)
        drafts = drafter.propose({request: 250})[request]
        right = sum(token == text[100 + at] for at, token in enumerate(drafts))
        assert len(drafts) == 250
        assert right / 250 == pytest.approx(probability, abs=0.1)
        assert max(drafts) < 1000
        near_the_end: Any = Text([5, 6], 397)
        assert len(drafter.propose({near_the_end: 7})[near_the_end]) == 3


def test_what_is_measured_is_what_was_asked_for(make_engine: Make) -> None:
    engine = make_engine("silu", 2, deterministic=True, speculate="lookup", max_sequences=3)
    drafter = engine.scheduler.speculative.drafter
    result = measure_speculation(engine, [0.0, 1.0], prompt_tokens=9, max_tokens=24, repeat=1, sequences=2)
    document = json.loads(json.dumps(result.document()))
    assert (document["kind"], document["sequences"]) == ("lookup", 2)
    assert list(document["row_seconds"]) == ["1", "2", "4", "8"]
    assert [run["probability"] for run in document["runs"]] == [0.0, 1.0]
    assert document["runs"][0]["acceptance"] == 0
    assert all(run["speed"] > 0 and run["together"] > 0 for run in document["runs"])
    assert document["plain_together"] > 0
    assert engine.scheduler.speculative.drafter is drafter
    assert engine.block_pool.owned == 0
    recorded = {name for name in engine.recordings() if name.startswith("verify greedy")}
    assert recorded >= {f"verify greedy decode, {rows} rows" for rows in (2, 3, 5, 7, 8, 16, 24)}
    (run,) = measure_speculation(engine, [], prompt_tokens=9, max_tokens=8, repeat=1).runs
    assert run.probability is None


def test_the_speed_while_all_requests_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two requests one ends after three steps of a second, the other two steps later."""
    now = [0.0]
    monkeypatch.setattr(speculation, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    tokens = iter([(1, 1), (3, 2), (3, 2), (0, 1), (0, 1)])

    class Stub:
        def __init__(self) -> None:
            self.requests: list[Any] = []

        def add_request(self, prompt: list[int], max_tokens: int) -> Any:
            made = SimpleNamespace(generated=[], generated_tokens=0, finish_reason=None)
            made.draft_tokens = made.accepted_tokens = 0
            self.requests.append(made)
            return made

        def step(self) -> None:
            now[0] += 1.0
            for request, count in zip(self.requests, next(tokens), strict=True):
                request.generated_tokens += count
                request.finish_reason = "length" if request.generated_tokens == 7 else None

    run = speculation._run(Stub(), [[1], [2]], 7)  # type: ignore[arg-type]  # a stub
    assert run.together == 10 / 2
    assert run.speed == 12 / 4


def test_an_engine_without_speculation_says_why(make_engine: Make) -> None:
    for options, reason in (({"speculate": "off"}, "the option speculate is off"), ({}, "is not batch-invariant")):
        with pytest.raises(UsageError, match=f"speculation cannot be measured: .*{reason}"):
            measure_speculation(make_engine("silu", **options), [0.5], prompt_tokens=4, max_tokens=4, repeat=1)


def test_bench_prints_it(bitnet: Callable[..., Any]) -> None:
    given = ("bench", "--synthetic", "bonsai-tiny", "-d", "numpy", "-p", 8, "-n", 4, "--repeat", 1, "--deterministic")
    result = bitnet(*given, "--acceptance", 0.5, "--acceptance", 1)
    assert result.code == 0
    assert "while all requests run" not in result.out
    lines = [line for line in result.out.splitlines() if line.startswith(("verified rows", "speculation, P = "))]
    assert [line.split("  ")[0] for line in lines] == ["verified rows", "speculation, P = 0.5", "speculation, P = 1"]
    assert "no draft tokens" in lines[1]  # of so short texts
    assert "x while all requests run)" in bitnet(*given, "-s", 2, "--acceptance", 1).out
    wrong = bitnet(*given, "--acceptance", 2)
    assert (wrong.code, "acceptance" in wrong.err) == (2, True)
