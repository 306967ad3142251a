"""Rows whose tokens are drawn together get what each of them gets alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from bitnet_core.engine.sampling.batched import MIN_BATCH, sample_batch
from bitnet_core.engine.sampling.logits import TopLogits
from bitnet_core.engine.sampling.sampler import Sampler
from bitnet_core.options.sampling import SamplingParams
from bitnet_core.plan.scratch import SHORTLIST
from bitnet_hal.errors import GpuError

VOCAB = 2000
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
    {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    {"temperature": 0.8, "top_k": 1},
    {"temperature": 0.8, "top_k": 900, "top_p": 0.9},
    {"temperature": 2.0, "top_k": 10**30, "min_p": 0.2},
]


def listed(logits: np.ndarray, k: int) -> TopLogits:
    ids = np.argsort(-logits, kind="stable")[:k].astype(np.int32)
    most = logits.max()
    total = float(most), float(np.log(np.sum(np.exp(logits - most), dtype=np.float32)))
    return TopLogits(lambda: logits, ids, logits[ids], total)


@pytest.mark.parametrize("vocab", [VOCAB, 200])
@pytest.mark.parametrize("spread", [0.5, 2.0, 6.0])
def test_together_as_alone(vocab: int, spread: float) -> None:
    rng = np.random.default_rng(5)
    many, alone = ([Sampler(SamplingParams(seed=n, **kind), vocab) for n, kind in enumerate(KINDS)] for _ in range(2))
    asked = 0
    for _ in range(60):
        logits = [np.round(spread * rng.standard_normal(vocab), 2).astype(np.float32) for _ in KINDS]
        lists = [listed(row, min(SHORTLIST, vocab)) for row in logits]
        tokens = sample_batch(many, lists)
        expected: list[int | None] = []
        for sampler, scores in zip(alone, lists, strict=True):
            assert scores.ids is not None
            assert scores.values is not None
            expected.append(sampler.choose_from_list(scores.ids, scores.values, (), scores.total))
        assert tokens == expected
        for one, other, token, row in zip(many, alone, tokens, logits, strict=True):
            if token is None:
                asked += 1
                assert one.choose(row, ()) == other.choose(row, ())
    assert asked < 60 * len(KINDS) * (0.75 if spread < 6 else 0.2)


def test_what_is_no_number_is_one_text_s_own() -> None:
    samplers = [Sampler(SamplingParams(temperature=1.0, seed=n), VOCAB) for n in range(3)]
    rows = [np.random.default_rng(n).standard_normal(VOCAB).astype(np.float32) for n in range(3)]
    lists = [listed(row, SHORTLIST) for row in rows]
    lists[1] = TopLogits(lists[1].full, lists[1].ids, np.full(SHORTLIST, np.nan, np.float32), (np.nan, np.nan))
    assert sample_batch(samplers, lists)[1] is None
    with pytest.raises(GpuError, match="not numbers"):
        samplers[1].choose(np.full(VOCAB, np.nan, np.float32), ())


@pytest.mark.parametrize("texts", [MIN_BATCH - 1, MIN_BATCH, 9])
def test_texts_that_draw_do_not_depend_on_their_neighbours(
    texts: int, make_engine: Callable[..., Any], run_all: Callable[[Any], None]
) -> None:
    kinds = [KINDS[n % len(KINDS)] | {"seed": n} for n in range(texts - 1)] + [
        {"temperature": 1.0, "logprobs": 2, "seed": 1}
    ]
    engine = make_engine("silu", max_sequences=16)
    together = [engine.add_request([n + 1, 5], SamplingParams(**kind), max_tokens=20) for n, kind in enumerate(kinds)]
    run_all(engine)
    for n, (kind, text) in enumerate(zip(kinds, together, strict=True)):
        alone = engine.add_request([n + 1, 5], SamplingParams(**kind), max_tokens=20)
        run_all(engine)
        assert text.generated == alone.generated
