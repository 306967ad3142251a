"""Our logits against those of the transformers library, made by golden/make_reference_logits.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.run.batch import ScheduledTokens
from bitnet_core.engine.sampling.logits import LogitsRequest
from bitnet_core.options.engine import EngineOptions
from bitnet_hal.reference.device import NumpyDevice

REFERENCE = Path(__file__).parent / "reference_logits.npz"
STYLES = ("offline", "online", "silu", "llama")
TOLERANCE = 1e-4
WRONG_RULES = [("offline", {"activation": "silu"}), ("llama", {"rope_interleaved": False})]


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    with np.load(REFERENCE) as archive:
        return dict(archive)


@pytest.fixture
def engine(make_engine: Callable[..., Any], reference: dict[str, Any], style: str) -> Any:
    return make_engine(style, int(reference[f"{style}.seed"]), kv_cache_type="f32", max_sequences=2)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("length", [1, 5, 33, 130])
@pytest.mark.parametrize("chunk", [0, 7, 1])
def test_prompts_at_once_in_chunks_and_token_by_token(
    engine: Any, tiny: Any, reference: dict[str, Any], style: str, length: int, chunk: int
) -> None:
    logits = engine.logits(tiny.PROMPT[:length], chunk)
    np.testing.assert_allclose(logits, reference[f"{style}.logits"][:length], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("length", [1, 5, 33, 130])
def test_beside_another_sequence(engine: Any, tiny: Any, reference: dict[str, Any], style: str, length: int) -> None:
    """Rows of another text come before, between and after those of the prompt in each step."""
    other = tiny.PROMPT[::-1]
    runner, scheduler = engine._ready(), engine.scheduler
    with scheduler.admission.borrow_index(length) as req_index, scheduler.admission.borrow_index(length) as neighbour:
        out = []
        for start in range(0, length, 10):
            rows, wanted = [], []
            for at in range(start, min(start + 10, length)):
                rows.append(ScheduledTokens(neighbour, at, (other[at],)))
                wanted.append(len(rows))
                rows.append(ScheduledTokens(req_index, at, (tiny.PROMPT[at],)))
            out.append(runner.forward(rows, wanted, 64))
    expected = reference[f"{style}.logits"][:length]
    np.testing.assert_allclose(np.concatenate(out), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("style", STYLES)
def test_recorded_decoding(engine: Any, tiny: Any, reference: dict[str, Any], style: str) -> None:
    """Replays of the decode recording give the same logits, in a batch padded with an unused row as well."""
    runner, scheduler = engine._ready(), engine.scheduler
    with scheduler.admission.borrow_index(40) as req_index, scheduler.admission.borrow_index(40) as neighbour:
        for at in range(40):
            pair = [
                ScheduledTokens(req_index, at, (tiny.PROMPT[at],)),
                ScheduledTokens(neighbour, at, (tiny.PROMPT[-at],)),
            ]
            rows = pair if at % 2 else pair[:1]
            logits = runner.decode_step(rows, [LogitsRequest(0)] * len(rows))[0].full()
            if not at % 2:
                runner.decode_step(pair[1:], [LogitsRequest(0)])
            np.testing.assert_allclose(logits, reference[f"{style}.logits"][at], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(("style", "change"), WRONG_RULES)
def test_the_comparison_notices_wrong_rules(
    make_engine: Callable[..., Any], tiny: Any, reference: dict[str, Any], style: str, change: dict[str, Any]
) -> None:
    source = tiny.TinySource(tiny.CONFIGS[style], int(reference[f"{style}.seed"]))
    source.config = replace(source.config, **change)
    engine = Engine(source, NumpyDevice(), EngineOptions(kv_cache_type="f32"))
    difference = np.abs(engine.logits(tiny.PROMPT[:5]) - reference[f"{style}.logits"][:5])
    engine.close()
    assert difference.max() > 1


@pytest.mark.parametrize("style", STYLES)
def test_the_float_model_with_rounded_inputs(
    engine: Any, tiny: Any, float_model: Any, float64_model: Any, reference: dict[str, Any], style: str
) -> None:
    """With the inputs of its products rounded, as in training, it computes the logits of these models too."""

    class Rounded(float64_model):
        def _product(self, x: Any, name: str) -> Any:
            return super()._product(float_model.rounded(x, x.shape[1]), name)

    logits = Rounded(engine.source).logits(tiny.PROMPT)
    assert float_model.divergence(reference[f"{style}.logits"], logits).mean() <= 1e-3
