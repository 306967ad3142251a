"""Steps with draft tokens that are queued before the outputs of the last one are returned."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from bitnet_core.engine.request.request import Request
from bitnet_core.engine.schedule import speculative
from bitnet_core.engine.speculation.measurements import MAX_DRAFT
from bitnet_core.testing.drafts import EveryStep, draft_always
from bitnet_hal.errors import OutOfMemoryError

Run = Callable[[Any], None]

PROMPTS = [[5, 6, 7], [9], [11, 12, 13, 14] * 20]
TOKENS = 60


class Known:
    """A drafter that knows the texts by their first token; each third draft ends with a wrong token."""

    kind = "lookup"

    def __init__(self, texts: dict[int, list[int]]) -> None:
        self.texts = texts
        self.drafts = 0

    def propose(self, limits: Any) -> dict[Request, list[int]]:
        found = {}
        for request, limit in limits.items():
            text = [*self.texts[request.tokens[0]], *[0] * MAX_DRAFT]
            draft = text[request.generated_tokens :][:limit]
            self.drafts += 1
            if self.drafts % 3 == 0:
                draft[-1] = (draft[-1] + 1) % 64
            found[request] = draft
        return found

    def committed(self, request: Request, row: int, drafted: int, accepted: int) -> None:
        assert request.finish_reason or request.pending == 1

    def close(self) -> None:
        pass


@pytest.fixture
def started(make_engine: Any, run_all: Run, async_device: Any) -> Callable[[], tuple[Any, list[Request], list[Any]]]:
    """started(): an engine whose steps all have draft tokens, requests of which each has some tokens, and the same
    requests of an engine without speculation."""

    def start() -> tuple[Any, list[Request], list[Any]]:
        plain = make_engine("silu", 2, async_device(), speculate="off", deterministic=True)
        wanted = [plain.add_request(prompt, max_tokens=TOKENS) for prompt in PROMPTS]
        run_all(plain)
        drafter = Known({one.tokens[0]: one.generated for one in wanted})
        engine = make_engine("silu", 2, async_device(), drafter=drafter, deterministic=True, max_sequences=3)
        draft_always(engine, drafter, 3)
        found = [engine.add_request(prompt, max_tokens=TOKENS) for prompt in PROMPTS]
        while min(one.generated_tokens for one in found) < 6:
            engine.step()
        assert engine.scheduler.speculative.in_flight is not None
        return engine, found, wanted

    return start


def texts(requests: list[Any]) -> list[list[int]]:
    return [one.generated for one in requests]


def test_texts_are_those_without_draft_tokens(started: Any, run_all: Run) -> None:
    engine, found, wanted = started()
    run_all(engine)
    assert texts(found) == texts(wanted)
    assert [one.finish_reason for one in found] == ["length"] * 3
    assert engine.scheduler.speculative.in_flight is None
    assert engine.figures()["accepted_tokens"] > TOKENS
    assert engine.block_pool.owned == 0


def test_a_request_ends_while_its_step_is_in_flight(started: Any, run_all: Run) -> None:
    """The others keep their texts; a waiting one takes its place after the step."""
    engine, found, wanted = started()
    late = engine.add_request(PROMPTS[1], max_tokens=TOKENS)
    cancelled = len(found[0].tokens)
    engine.finish_request(found[0])
    engine.step()
    assert not late.generated_tokens
    run_all(engine)
    assert len(found[0].tokens) == cancelled
    assert texts(found[1:]) == texts(wanted[1:])
    assert late.generated == wanted[1].generated
    assert engine.block_pool.owned == 0


def test_a_preempted_request_does_not_take_its_tokens(started: Any, run_all: Run) -> None:
    engine, found, wanted = started()
    before = len(found[2].tokens)
    engine.scheduler.admission.preempt(found[2])
    engine.step()
    assert len(found[2].tokens) == before
    run_all(engine)
    assert texts(found) == texts(wanted)


def test_no_request_waits_for_the_step_in_flight(started: Any, run_all: Run) -> None:
    engine, found, wanted = started()
    for one in found:
        engine.finish_request(one)
    again = engine.add_request(PROMPTS[1], max_tokens=TOKENS)
    run_all(engine)
    assert again.generated == wanted[1].generated


def test_outputs_survive_a_failure_to_queue_the_next_step(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine recovers, and every token is returned once."""
    engine, found, wanted = started()
    returned = {one: one.generated for one in found}
    runner = engine.runner()
    queue = runner.queue_greedy
    failures: Iterator[Exception] = iter([OutOfMemoryError("no memory", requested=1)])

    def failing(spans: Any) -> Any:
        for error in failures:
            raise error
        return queue(spans)

    monkeypatch.setattr(runner, "queue_greedy", failing)
    while outputs := engine.step():
        for request, tokens in outputs:
            returned[request] += tokens
    assert engine.scheduler.errors.counts
    assert list(returned.values()) == texts(found) == texts(wanted)


def test_the_time_between_steps_is_not_that_of_the_device(
    started: Any, run_all: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that pauses does not make draft tokens expensive."""
    engine, _, _ = started()
    now = itertools.count()
    pauses = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: pauses[0] + 1e-5 * next(now))
    monkeypatch.setattr(speculative, "time", clock)
    seconds: list[float] = []

    class Watched(EveryStep):
        def verified(self, rows: int, duration: float, results: Any) -> None:
            seconds.append(duration)

    engine.scheduler.speculative.policy = Watched("lookup", engine.scheduler.counts, 3)
    for _ in range(4):
        pauses[0] += 100.0
        engine.step()
    assert 0 < max(seconds[1:]) < 1  # the first one began by another clock
