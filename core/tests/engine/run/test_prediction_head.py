"""The prediction head on a device: its rows are those of the float model, its tokens those of transformers' logits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.request.request import Request
from bitnet_core.engine.run.batch import ScheduledTokens, build_batch
from bitnet_core.engine.sampling.logits import LogitsRequest
from bitnet_core.formats.open import open_model
from bitnet_core.model.source import ModelSource
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.sampling import SamplingParams
from bitnet_hal.errors import UsageError
from bitnet_hal.reference.device import NumpyDevice

BONSAI2 = Path(__file__).parents[2] / "golden" / "bonsai2"
FILE = BONSAI2 / "rotated-PQ2_0-MTP-Q8_0.gguf"
ONE = [LogitsRequest(1)]


def make(source: ModelSource, **options: Any) -> Engine:
    return Engine(source, NumpyDevice(), EngineOptions(**{"deterministic": True, "max_sequences": 3} | options))


@pytest.fixture
def source() -> Iterator[ModelSource]:
    opened = open_model(FILE)
    yield opened
    opened.close()


@pytest.fixture
def reference() -> dict[str, Any]:
    with np.load(BONSAI2 / "mtp_reference.npz") as archive:
        return dict(archive)


def test_the_layer_is_that_of_the_float_model(
    source: ModelSource, reference: dict[str, Any], float64_model: Any
) -> None:
    """In two steps, from the float model's hidden rows; an f32 cache, so that nothing is rounded."""
    engine = make(source, speculate="mtp", kv_cache_type="f32")
    tokens = reference["tokens_a"].tolist()
    exact = float64_model(source)
    hidden = exact.hidden(np.asarray(tokens)).astype(np.float32)
    head = engine.runner()._prediction
    plan, scratch = head._plan, head._scratch
    found = []
    with engine.scheduler.admission.borrow_index(len(tokens)) as req_index:
        engine.cache().upload_tables()
        for first, end in ((0, 11), (11, 19)):
            rows = end - first
            engine.device.upload(plan.hidden(scratch, 0, rows), memoryview(hidden[first:end].copy()).cast("B"))
            span = ScheduledTokens(req_index, first, tuple(tokens[first + 1 : end + 1]))
            scratch.upload("step", build_batch(engine.cache(), [span], rows))
            scratch.upload("index", np.arange(3, dtype=np.int32))
            engine.worker.launcher.run(plan.layer(scratch, engine.cache(), rows))
            y = np.empty((rows, source.config.hidden), np.float32)
            engine.device.download(scratch.view("residual", rows, y[0].nbytes), memoryview(y).cast("B"))
            found.append(y)
    wanted = exact.prediction_rows(hidden[:-1], tokens[1:])
    np.testing.assert_allclose(exact._normed(np.concatenate(found), "nextn.shared_head_norm"), wanted, atol=1e-3)
    engine.close()


@pytest.mark.parametrize("cut", [1, 7, 33])
def test_tokens_are_those_of_transformers(cut: int, source: ModelSource, reference: dict[str, Any]) -> None:
    """The head drafts the same tokens after a prompt in one step and after steps of `cut` tokens."""
    engine = make(source, speculate="mtp", prefill_chunk=64)
    tokens = reference["tokens_b"].tolist()
    best = reference["mtp_logits_b"].argmax(axis=1)
    first = len(tokens) - 1 - len(best)
    runner = engine.runner()
    right = []
    with engine.scheduler.admission.borrow_index(len(tokens)) as req_index:
        at = 0
        while at < len(tokens) - 1:
            end = min(at + (cut if at else 61), len(tokens) - 1)
            list(runner.prompt_step([ScheduledTokens(req_index, at, tuple(tokens[at:end]))], [end - at - 1], ONE, 64))
            found = runner.draft({req_index: tokens[: end + 1]}, {req_index: 1})
            right.append(found[req_index] == [best[end - 1 - first]])
            at = end
        assert runner.draft({req_index: tokens[: at + 2]}, {req_index: 1}) == {}
    assert sum(right) >= 0.9 * len(right)
    engine.close()


def test_further_tokens_follow_from_the_heads_own_rows(source: ModelSource, float64_model: Any) -> None:
    engine = make(source, speculate="mtp")
    tokens = [7 * n % 300 for n in range(40)]
    runner = engine.runner()
    right = 0
    with engine.scheduler.admission.borrow_index(64) as req_index:
        for at in range(len(tokens) - 1):
            list(runner.prompt_step([ScheduledTokens(req_index, at, (tokens[at],))], [0], ONE, 64))
            if at % 4 == 3:
                text = tokens[: at + 2]
                right += runner.draft({req_index: text}, {req_index: 4})[req_index] == float64_model(source).draft(
                    text, 4
                )
    assert right >= 7  # of 9; int8 activations of the trunk and the head differ
    engine.close()


def test_drafts_follow_bursts_too(source: ModelSource) -> None:
    """The last row of greedy decoding in bursts is taken from the device's step buffer."""
    engine = make(source, speculate="mtp")
    engine.scheduler.speculative.use(None, 0)
    request = engine.add_request([7 * n % 300 for n in range(20)], max_tokens=30)
    while request.generated_tokens < 12:
        engine.step()
    found = engine.runner().draft({request.req_index: request.tokens}, {request.req_index: 3})
    assert len(found[request.req_index]) == 3
    engine.close()


def test_buffers_are_planned(source: ModelSource) -> None:
    engine = make(source, speculate="mtp", kv_cache_size=3 << 20)
    said(engine, [list(range(200))], [SamplingParams()], 3)
    plan = engine.memory_plan()
    used = engine.memory()["pool_in_use_bytes"]
    assert 0.7 * (plan.total - plan.weights) < used <= plan.total - plan.weights
    engine.close()


def said(engine: Engine, prompts: list[list[int]], samplings: list[SamplingParams], tokens: int) -> list[Request]:
    pairs = zip(prompts, samplings, strict=True)
    requests = [engine.add_request(prompt, sampling, max_tokens=tokens) for prompt, sampling in pairs]
    while engine.step():
        pass
    return requests


@pytest.mark.parametrize("count", [1, 3])
def test_texts_are_those_without_speculation(count: int, source: ModelSource) -> None:
    prompts = [[7 * n % 300 for n in range(50)], [9], [11 * n % 300 for n in range(70)]][:count]
    samplings = [SamplingParams(), SamplingParams(1.0, seed=3), SamplingParams(0.9, top_k=8, seed=5)][-count:]
    plain = make(source, speculate="off")
    texts = said(plain, prompts, samplings, 20)
    engine = make(source, speculate="mtp")
    policy: Any = engine.scheduler.speculative.policy
    policy.until_next = lambda requests, rows: 0
    policy.limits = lambda requests, most, rows: {
        one: limit for one in requests if (limit := min(rows // len(requests) - 1, 3, most[one]))
    }
    found = said(engine, prompts, samplings, 20)
    assert [one.generated for one in found] == [one.generated for one in texts]
    figures = engine.figures()
    assert figures["draft_tokens"] > 10 * count
    memory, plan = engine.memory(), engine.memory_plan()
    assert plan.kv_cache == engine.cache().nbytes
    held = memory["weights_bytes"] + memory["wrapped_weights_bytes"]
    assert plan.weights < held
    engine.close()
    plain.close()


def test_a_model_without_a_head() -> None:
    with pytest.raises(UsageError, match="no head for multi-token prediction that can be used"):
        make(open_model(BONSAI2 / "rotated-PTQ1_0.gguf"), speculate="mtp")


def test_the_head_is_not_loaded_unasked(source: ModelSource) -> None:
    engine = make(source)
    assert engine.weights.prediction is None
    assert len(engine.cache().keys) == 1
    engine.close()
