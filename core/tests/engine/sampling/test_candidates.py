"""Draws from a shortlist are those from all logits, and few bytes leave the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import bitnet_core
import numpy as np
import pytest
from bitnet_core.engine.sampling.sampler import Sampler
from bitnet_core.options.sampling import SamplingParams
from bitnet_core.plan.scratch import SHORTLIST

VOCAB = 2000
JSON = {
    "type": "json_schema",
    "json_schema": {"name": "it", "schema": {"type": "object", "additionalProperties": True}},
}

KINDS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.7},
    {"temperature": 1.4},
    {"temperature": 1e-300},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.0, "top_p": 0.0},
    {"temperature": 1.2, "min_p": 0.05},
    {"temperature": 1.0, "top_p": 0.95, "min_p": 0.01},
    {"temperature": 0.8, "top_k": 40},
    {"temperature": 0.8, "top_k": 900, "top_p": 0.9},
    {"temperature": 1.0, "repetition_penalty": 1.3, "frequency_penalty": 0.2},
    {"temperature": 0.0, "repetition_penalty": 1.3, "logit_bias": {5: -3.0, 7: float("-inf")}},
    {"temperature": 0.9, "logit_bias": dict.fromkeys(range(300), -2.0)},
    {"temperature": 1.0, "logprobs": 3},
]


def shortlist(logits: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, tuple[float, float]]:
    ids = np.argsort(-logits, kind="stable")[:k].astype(np.int32)
    most = logits.max()
    total = np.log(np.sum(np.exp(logits - most), dtype=np.float32))
    return ids, logits[ids], (float(most), float(total))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("spread", [1.0, 6.0])
def test_a_shortlist_draws_what_all_logits_draw_or_asks_for_them(kind: dict[str, Any], spread: float) -> None:
    rng = np.random.default_rng(3)
    full, short = (Sampler(SamplingParams(seed=9, **kind), VOCAB, prompt_tokens=3) for _ in range(2))
    tokens, asked = [1, 2, 3], 0
    for _ in range(60):
        logits = np.round(spread * rng.standard_normal(VOCAB), 2).astype(np.float32)  # with equal ones
        logits_request = short.logits_request(tokens)
        assert logits_request.k > 0
        found = short.choose_from_list(
            *shortlist(logits, logits_request.k)[:2], tokens, shortlist(logits, logits_request.k)[2]
        )
        asked += found is None
        chosen = short.choose(logits, tokens) if found is None else found
        assert chosen == full.choose(logits, tokens)
        tokens.append(chosen)
    for one, other in zip(short.scores, full.scores, strict=True):
        assert (one.token, [t for t, _ in one.top]) == (other.token, [t for t, _ in other.top])
        np.testing.assert_allclose(
            [one.logprob, *(v for _, v in one.top)], [other.logprob, *(v for _, v in other.top)], atol=1e-4
        )
    if spread == 6.0 and kind["temperature"] <= 1 and "top_k" not in kind and "logit_bias" not in kind:
        assert asked < 12


def test_masked_lists_that_end_early_are_complete() -> None:
    sampler = Sampler(SamplingParams(temperature=1.0, seed=1, logprobs=5), VOCAB)
    ids, values = np.full(SHORTLIST, -1, np.int32), np.full(SHORTLIST, -np.inf, np.float32)
    ids[:2], values[:2] = (40, 7), (1.0, 0.0)
    total = (1.0, float(np.log1p(np.exp(-1))))
    drawn = Counter(sampler.choose_from_list(ids, values, (), total) for _ in range(400))
    assert drawn[40] / 400 == pytest.approx(np.exp(1) / (1 + np.exp(1)), abs=0.06)
    assert set(drawn) == {40, 7}
    assert [token for token, _ in sampler.scores[0].top] == [40, 7]


def test_shares_over_the_whole_vocabulary() -> None:
    logits = np.zeros(1024, np.float32)
    logits[512:] = 1.0
    sampler = Sampler(SamplingParams(temperature=1.0, seed=2), 1024)
    drawn = np.array([sampler.choose(logits, ()) for _ in range(4000)])
    assert np.mean(drawn >= 512) == pytest.approx(np.e / (1 + np.e), abs=0.03)
    assert np.bincount(drawn // 128, minlength=8)[:4] == pytest.approx(4000 / (1 + np.e) / 4, abs=60)


@pytest.fixture(scope="module")
def model() -> Iterator[bitnet_core.Model]:
    with bitnet_core.load(None, "numpy") as loaded:
        yield loaded


@pytest.mark.parametrize(
    "kind",
    [KINDS[0], KINDS[10], {"response_format": JSON, "temperature": 1.0}],
    ids=str,
)
def test_texts_do_not_depend_on_the_shortlist(
    model: bitnet_core.Model, monkeypatch: pytest.MonkeyPatch, kind: dict[str, Any]
) -> None:
    made = model.generate("Once upon a time", max_tokens=10, seed=4, **kind)
    monkeypatch.setattr(model.engine._ready()._logits, "makes_lists", False)
    assert model.generate("Once upon a time", max_tokens=10, seed=4, **kind).text == made.text


def test_bytes_that_leave_the_device(model: bitnet_core.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of greedy, drawing, scored and constrained rows brings shortlists, and all logits of hardly any row."""
    engine, sizes = model.engine, []
    download = engine.device.download

    def counted(view: Any, out: Any) -> None:
        sizes.append(view.nbytes)
        download(view, out)

    monkeypatch.setattr(engine.device, "download", counted)
    kinds = [None, SamplingParams(temperature=1.0, seed=1), SamplingParams(temperature=0.7, seed=2, logprobs=4)]
    prompt, rows = model.tokenizer.encode("Once upon a time", add_bos=True), len(kinds) + 1
    constraint = model.grammars.constraint(bitnet_core.structured.grammar_of(JSON))
    engine.add_request(prompt, SamplingParams(temperature=1.0, seed=3), max_tokens=14, constraint=constraint)
    for sampling in kinds:
        engine.add_request(prompt, sampling, max_tokens=14)
    whole, steps, row_bytes = 0, 0, 4 * engine.config.vocab
    while len(engine.scheduler.running or engine.scheduler.waiting) == rows:
        sizes.clear()
        engine.step()
        steps += 1
        rest = list(sizes)
        rest.remove(8 * SHORTLIST * rows + 8 * rows)  # ids, values and totals at once
        assert set(rest) <= {row_bytes}
        whole += len(rest)
    assert steps >= 12
    assert whole <= 0.1 * steps * rows


def test_masks_go_up_for_constrained_rows_only(model: bitnet_core.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, sizes = model.engine, []
    upload = engine.device.upload

    def counted(view: Any, values: Any) -> None:
        sizes.append(view.nbytes)
        upload(view, values)

    monkeypatch.setattr(engine.device, "upload", counted)
    prompt = model.tokenizer.encode("Once", add_bos=True)
    constraint = model.grammars.constraint(bitnet_core.structured.grammar_of(JSON))
    engine.add_request(prompt, max_tokens=6, constraint=constraint)
    for _ in range(3):
        engine.add_request(prompt, max_tokens=6)
    row_bytes, seen = 4 * (engine.config.tokens // 32), []
    while engine.step():
        seen.append([size for size in sizes if size % row_bytes == 0])
        sizes.clear()
    assert seen[2:4] == [[row_bytes]] * 2
