"""Speculative steps: texts, scores and ends are those without speculation, whatever is drafted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from bitnet_core.engine.request.request import Request
from bitnet_core.engine.speculation.choice import rows_that_pay
from bitnet_core.engine.speculation.measurements import MAX_DRAFT
from bitnet_core.options.sampling import SamplingParams
from bitnet_core.testing.drafts import EveryStep, draft_always
from bitnet_hal.device import DeviceType
from bitnet_hal.errors import DeviceLostError, GpuError, OutOfMemoryError, UsageError
from bitnet_hal.reference.device import NumpyDevice

Make = Callable[..., Any]
Run = Callable[[Any], None]

VOCAB = 64
TOKENS = 24

SAMPLINGS = {
    "greedy": SamplingParams(),
    "temperature": SamplingParams(0.8, seed=1),
    "hot": SamplingParams(3.0, seed=2),
    "top k": SamplingParams(1.5, top_k=5, seed=3),
    "top p": SamplingParams(1.5, top_p=0.7, seed=4),
    "min p": SamplingParams(1.5, min_p=0.1, seed=5),
    "top n sigma": SamplingParams(1.5, top_n_sigma=1.0, seed=6),
    "repetition penalty": SamplingParams(repetition_penalty=1.3),
    "penalties": SamplingParams(0.9, presence_penalty=0.5, frequency_penalty=0.3, top_k=8, seed=7),
    "raised": SamplingParams(0.9, frequency_penalty=-0.3, seed=8),
    "bias": SamplingParams(0.9, logit_bias={3: 2.0, 5: float("-inf")}, seed=9),
    "logprobs": SamplingParams(logprobs=3),
    "seeded logprobs": SamplingParams(0.9, top_k=7, logprobs=2, seed=10),
    "logprobs of penalized": SamplingParams(0.9, repetition_penalty=1.2, logprobs=2, seed=11),
}


class Prophet:
    """A drafter that knows the texts, by their prompts, and is right with probability `right`."""

    kind = "lookup"

    def __init__(self, texts: Mapping[tuple[int, ...], list[int]], right: float = 0.75) -> None:
        self.texts = texts
        self.right = right
        self.random = np.random.default_rng(7)
        self.results: list[tuple[int, int, int]] = []  # (row, drafted, accepted)
        self.closed = 0

    def propose(self, limits: Mapping[Request, int]) -> dict[Request, list[int]]:
        drafts = {}
        for request, limit in limits.items():
            text = self.texts[tuple(request.tokens[: request.prompt_tokens])]
            coming = [*text, *[0] * MAX_DRAFT][request.generated_tokens :][:limit]
            wrong = self.random.random(limit) >= self.right
            drafts[request] = [(token + bool(no)) % VOCAB for token, no in zip(coming, wrong, strict=True)]
        return drafts

    def committed(self, request: Request, row: int, drafted: int, accepted: int) -> None:
        assert request.finish_reason or request.pending == 1
        self.results.append((row, drafted, accepted))

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def both(make_engine: Make, run_all: Run) -> Callable[..., tuple[list[Request], list[Request], Any]]:
    """both(requests, count=4, **options): the requests without speculation, with it, and the engine with it.

    A request: prompt, sampling, and arguments of add_request; a function among them is called for its value.
    """

    def ask(engine: Any, asked: Any) -> list[Request]:
        made = []
        for prompt, sampling, arguments in asked:
            given = {name: value() if callable(value) else value for name, value in arguments.items()}
            made.append(engine.add_request(prompt, sampling, **{"max_tokens": TOKENS, **given}))
        run_all(engine)
        return made

    def compare(
        asked: Any, count: int = 4, device: Any = NumpyDevice, **options: Any
    ) -> tuple[list[Request], list[Request], Any]:
        settings = {"deterministic": True, **options}
        plain = ask(make_engine("silu", 2, device(), speculate="off", **settings), asked)
        drafter = Prophet({tuple(one.tokens[: one.prompt_tokens]): one.generated for one in plain})
        engine = make_engine("silu", 2, device(), drafter=drafter, **settings)
        draft_always(engine, drafter, count)
        found = ask(engine, asked)
        assert [one.generated for one in found] == [one.generated for one in plain]
        assert [one.finish_reason for one in found] == [one.finish_reason for one in plain]
        assert [one.sampler.scores[: one.generated_tokens] for one in found] == [
            one.sampler.scores[: one.generated_tokens] for one in plain
        ]
        assert engine.block_pool.owned == 0
        return plain, found, engine

    return compare


PROMPTS = [[5, 6, 7], list(range(1, 60)), [9], [11, 12, 13, 14] * 20]


def test_rows_of_a_text_that_attend_in_one_launch(both: Any, faulty: Any) -> None:
    """Run a device whose kernel for rotation and attention of a few rows is batch-invariant."""
    rows = dict.fromkeys({*faulty().info.batch_invariant_rows, "rope_attention_mixed"}, 8)
    device = partial(faulty, kernels=frozenset({"top_k", "rope_attention_mixed"}), batch_invariant_rows=rows)
    plain, _, engine = both([(prompt, None, {}) for prompt in PROMPTS], device=device)
    alone = [make.generated for make in both([(prompt, None, {}) for prompt in PROMPTS])[0]]
    assert [one.generated for one in plain] == alone
    assert engine.kernel_launches["rope_attention_mixed"]
    assert not engine.kernel_launches["rope_store_kv"]


def test_greedy_texts_need_no_logits_on_the_host(both: Any, faulty: Any) -> None:
    """The device chooses the tokens of draft rows; if one text is sampled, all rows are listed."""
    invariant = dict.fromkeys(faulty().info.batch_invariant_rows, 64)
    device = partial(faulty, kernels=frozenset({"top_k"}), batch_invariant_rows=invariant)
    _, found, engine = both([(prompt, None, {}) for prompt in PROMPTS], device=device)
    assert sum(one.accepted_tokens for one in found) > 30
    assert engine.kernel_launches["top_k"] <= len(PROMPTS)  # for the first tokens
    asked = [(prompt, SAMPLINGS["hot" if prompt == [9] else "greedy"], {}) for prompt in PROMPTS]
    _, _, engine = both(asked, device=device)
    assert engine.kernel_launches["top_k"] > len(PROMPTS) + 4


@pytest.mark.parametrize("name", SAMPLINGS)
def test_every_sampler_chooses_the_same_tokens(name: str, both: Any) -> None:
    """Alone and beside three others, with random numbers of its own."""
    asked = [(prompt, SAMPLINGS[name], {}) for prompt in PROMPTS]
    for some, count in ((asked[:1], 7), (asked, 2)):
        _, found, engine = both(some, count)
        figures = engine.figures()
        assert figures["draft_tokens"] > figures["accepted_tokens"] > 5
        assert figures["draft_steps"] < len(some) * TOKENS - 5
        assert sum(one.accepted_tokens for one in found) == figures["accepted_tokens"]
        assert figures["generated_tokens"] == len(some) * TOKENS


@pytest.mark.parametrize("kv_cache_type", ["f32", "int8"])
def test_different_requests_share_the_steps(kv_cache_type: str, both: Any) -> None:
    asked = [([n, *PROMPTS[n % 4]], sampling, {"max_tokens": 9 + n}) for n, sampling in enumerate(SAMPLINGS.values())]
    _, _, engine = both(asked, 2, kv_cache_type=kv_cache_type, max_sequences=6)
    assert engine.figures()["accepted_tokens"] > 40


class Cycle:
    """A constraint: tokens of the same rest as the number of tokens before, `length` of them; fails at `broken`."""

    def __init__(self, length: int = 20, broken: int = -1, count: int = 0) -> None:
        self.length, self.broken, self.count = length, broken, count

    def mask(self) -> Any:
        if self.count == self.broken:
            raise ValueError("the grammar is broken")
        bits = np.zeros(VOCAB, np.uint8)
        bits[self.count % 3 :: 3] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    def accept(self, token: int) -> bool:
        assert token % 3 == self.count % 3
        self.count += 1
        return self.count < self.length

    def copy(self) -> Cycle:
        return Cycle(self.length, self.broken, self.count)


@pytest.mark.parametrize("name", ["greedy", "hot", "top k", "penalties", "seeded logprobs", "top n sigma"])
def test_constraints_follow_draft_tokens(name: str, both: Any) -> None:
    asked = [
        (PROMPTS[0], SAMPLINGS[name], {"constraint": Cycle}),
        (PROMPTS[1], SAMPLINGS[name], {}),
        (PROMPTS[2], SAMPLINGS[name], {"constraint": lambda: Cycle(30, broken=13)}),
    ]
    _, found, engine = both(asked, 3, max_sequences=8)
    assert [one.generated_tokens for one in found] == [20, TOKENS, 13]
    assert [one.finish_reason for one in found] == ["stop", "length", "error"]
    assert str(found[2].error) == "the grammar is broken"
    assert engine.figures()["accepted_tokens"] > 20


def test_texts_end_where_they_would(both: Any) -> None:
    """At their limit, at the context's, and at a token that ends them among accepted ones."""
    plain, _, _ = both([(PROMPTS[0], SAMPLINGS["hot"], {})])
    said = plain[0].generated
    limits = [(PROMPTS[0], SAMPLINGS["hot"], {"max_tokens": limit}) for limit in (1, 2, 5, 8)]
    stops = [(PROMPTS[0], SAMPLINGS["hot"], {"stop_token_ids": [token]}) for token in said[1:6]]
    for asked in (*limits, *stops):
        both([asked], 7)
    both([(PROMPTS[1], SAMPLINGS["hot"], {"max_tokens": 200})], 7, context=100)


def test_prefixes_and_preemption_change_nothing(both: Any) -> None:
    """Requests that share a prompt, in a cache that is too small for all of them."""
    prompt = list(range(64))
    asked = [([*prompt, n], SAMPLINGS["hot"], {"max_tokens": 70}) for n in range(3)]
    _, _, engine = both(asked, 2, max_sequences=3, kv_cache_size=2 * 2 * 64 * 2 * 16 * 2 * 5)
    figures = engine.figures()
    assert figures["preemptions"]
    assert figures["prefix_hits"]
    assert figures["accepted_tokens"] > 20


def test_the_rows_of_a_step_are_those_that_the_device_keeps_invariant(both: Any, faulty: Any) -> None:
    for rows, sequences in ((3, 1), (3, 2), (5, 3)):
        invariant = dict.fromkeys(faulty().info.batch_invariant_rows, rows)
        asked = [(prompt, SAMPLINGS["hot"], {}) for prompt in PROMPTS[:sequences]]
        device = partial(faulty, batch_invariant_rows=invariant)
        _, _, engine = both(asked, 7, device, max_sequences=sequences)
        speculative = engine.scheduler.speculative
        assert speculative.rows == rows
        assert max(row + 1 + drafted for row, drafted, _ in speculative.drafter.results) == rows


def test_requests_that_fill_the_step_have_no_drafts(both: Any, faulty: Any) -> None:
    device = partial(faulty, batch_invariant_rows=dict.fromkeys(faulty().info.batch_invariant_rows, 8))
    asked = [([n], SAMPLINGS["greedy"], {"max_tokens": 12 + 6 * (n > 6)}) for n in range(8)]
    _, found, engine = both(asked, 4, device, max_sequences=8)
    assert engine.figures()["draft_tokens"] == found[7].draft_tokens > 0


def test_every_request_can_have_the_longest_draft(both: Any, faulty: Any) -> None:
    """Rows for more would take memory in vain."""
    device = partial(faulty, batch_invariant_rows=dict.fromkeys(faulty().info.batch_invariant_rows, 64))
    asked = [([n], SAMPLINGS["greedy"], {}) for n in range(3)]
    _, _, engine = both(asked, 7, device, max_sequences=3)
    speculative = engine.scheduler.speculative
    assert speculative.rows == engine.worker.verify_rows == 24
    assert {drafted for _, drafted, _ in speculative.drafter.results} >= {7}


@pytest.mark.parametrize(("kind", "rows"), [(DeviceType.GPU, 8), (DeviceType.INTEGRATED, 8), (DeviceType.CPU, 64)])
def test_draft_tokens_of_grouped_scales_take_few_rows_on_a_gpu(
    make_engine: Make, faulty: Any, kind: DeviceType, rows: int
) -> None:
    info = replace(faulty().info, type=kind)
    config = make_engine("silu").config
    grouped = replace(config, activation_group_size=32)
    assert [rows_that_pay(grouped, info, requests) for requests in (1, 12)] == [8, rows]
    assert [rows_that_pay(config, info, requests) for requests in (1, 12)] == [8, 64]


@pytest.mark.parametrize("greedy", [True, False])
def test_logits_that_are_not_numbers_end_their_request(
    greedy: bool, make_engine: Make, run_all: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """greedy: the device chooses the tokens of the step, and marks the row; else the host samples."""
    drafter = Prophet({(5,): [1] * 40, (6,): [2] * 40})
    engine = make_engine("silu", 2, deterministic=True, drafter=drafter)
    draft_always(engine, drafter, 4)
    runner = engine._ready()
    queue_greedy, verify_step = runner.queue_greedy, runner.verify_step

    def marked(scheduled: Any) -> Any:
        monkeypatch.undo()
        read = queue_greedy(scheduled)
        return lambda: [-1, *read()[1:]]

    def broken(scheduled: Any, logits_requests: Any) -> Any:
        lists = verify_step(scheduled, logits_requests)
        monkeypatch.undo()
        nothing = np.full(VOCAB, np.nan, np.float32)
        return [type(lists[0])(lambda: nothing), *lists[1:]]

    monkeypatch.setattr(runner, "queue_greedy", marked)
    monkeypatch.setattr(runner, "verify_step", broken)
    sampling = SamplingParams() if greedy else SamplingParams(0.8, seed=1)
    bad, good = (engine.add_request([token], sampling, max_tokens=20) for token in (5, 6))
    run_all(engine)
    assert bad.finish_reason == "error"
    assert isinstance(bad.error, GpuError)
    assert (good.finish_reason, good.generated_tokens) == ("length", 20)


class Sometimes(EveryStep):
    """A policy that drafts now and then, in the middle of runs of steps."""

    random = np.random.default_rng(3)

    def until_next(self, requests: Any, rows: int) -> float:
        return int(self.random.integers(0, 9)) * int(self.random.integers(0, 2))


def test_drafts_between_steps_that_are_queued_ahead(make_engine: Make, run_all: Run, async_device: Any) -> None:
    """On a device with asynchronous readback: requests that end at different times, alone and together."""
    settings = {"deterministic": True, "stream_interval": 1.0}
    plain = make_engine("silu", 2, async_device(), speculate="off", **settings)
    wanted = [plain.add_request([n, 5], max_tokens=60 + 30 * n) for n in range(2)]
    run_all(plain)
    device = async_device()
    engine = make_engine("silu", 2, device, **settings)
    drafter = Prophet({tuple(one.tokens[:2]): one.generated for one in wanted})
    draft_always(engine, drafter, 3)
    engine.scheduler.speculative.policy = Sometimes("lookup", engine.scheduler.counts, 3)
    found = [engine.add_request(one.tokens[:2], max_tokens=one.max_tokens) for one in wanted]
    run_all(engine)
    assert [one.generated for one in found] == [one.generated for one in wanted]
    assert engine.figures()["accepted_tokens"] > 10
    assert device.calls["read_async"] > 3


def test_a_failed_step_is_repeated(make_engine: Make, run_all: Run, faulty: Any) -> None:
    """Lack of memory in the middle of speculation: recovered from, with the text unchanged."""
    plain = make_engine("silu", 2, deterministic=True, speculate="off")
    sampling = SAMPLINGS["hot"]
    wanted = plain.add_request(PROMPTS[0], sampling, max_tokens=40)
    run_all(plain)
    device = faulty()
    drafter = Prophet({(5, 6, 7): wanted.generated}, 1.0)
    engine = make_engine("silu", 2, device, deterministic=True, drafter=drafter)
    draft_always(engine, drafter, 4)
    found = engine.add_request(PROMPTS[0], sampling, max_tokens=40)
    while found.generated_tokens < 10:
        engine.step()
    failures = iter([OutOfMemoryError("no memory", requested=1)])

    def fail(*_: Any) -> None:
        for error in failures:
            raise error

    device.before["download"] = fail
    run_all(engine)
    assert found.generated == wanted.generated
    assert engine.scheduler.errors.counts


def test_a_device_that_cannot_verify_ends_speculation_alone(
    make_engine: Make, run_all: Run, faulty: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The device is lost in the middle of a text; the next one is not batch-invariant."""
    able = partial(faulty, features=frozenset({"batch-invariant"}))
    device = able()
    engine = make_engine("silu", 2, device, lambda _: faulty(), Prophet({(5, 6, 7): [1] * TOKENS}))
    draft_always(engine, engine.speculation.drafter, 4)
    found = engine.add_request(PROMPTS[0], max_tokens=TOKENS)
    while found.generated_tokens < 4:
        engine.step()

    def lose(*_: Any) -> None:
        raise DeviceLostError("gone")

    drafted = engine.figures()["draft_tokens"]
    device.before["download"] = lose
    run_all(engine)
    assert (found.finish_reason, found.generated_tokens) == ("length", TOKENS)
    assert engine.figures()["draft_tokens"] == drafted > 0
    assert caplog.text.count("speculation (draft) is off: numpy:0 is not batch-invariant") == 1
    assert "not batch-invariant" in engine.speculation.figures(engine.scheduler.counts)["off"]


def test_what_cannot_be_kept_is_refused(make_engine: Make, faulty: Any, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UsageError, match=r"speculation \(lookup\) was requested, but numpy:0 is not batch-invariant"):
        make_engine("silu", speculate="lookup")
    alone = dict.fromkeys(faulty().info.batch_invariant_rows, 1)
    with pytest.raises(UsageError, match="keeps no two rows of a step batch-invariant"):
        make_engine("silu", 0, faulty(batch_invariant_rows=alone), speculate="lookup", deterministic=True)
    with caplog.at_level(logging.INFO, "bitnet_core.engine.speculation.choice"):
        engine = make_engine("silu")
    assert caplog.text.count("speculation (lookup) is off: numpy:0 is not batch-invariant") == 1
    assert engine.scheduler.speculative.drafter is None
