"""The draft model: its cache follows the texts, whatever is accepted, and it never changes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.speculation.draft_model import DraftModel
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.sampling import SamplingParams
from bitnet_core.testing.drafts import draft_always
from bitnet_hal.errors import DeviceLostError, UsageError
from bitnet_hal.reference.device import NumpyDevice

Make = Callable[..., Any]
Run = Callable[[Any], None]

VOCAB = 64


@pytest.fixture
def draft(tiny: Any) -> Callable[..., DraftModel]:
    """draft(seed=2, device=None, **options): a draft model; seed 2 is that of the model itself."""

    def make(seed: int = 2, device: Any = None, **options: Any) -> DraftModel:
        source = tiny.TinySource(tiny.CONFIGS["silu"], seed)
        return DraftModel(Engine(source, device or NumpyDevice(), EngineOptions(speculate="off", **options)))

    return make


PROMPTS = [[5, 6, 7], list(range(1, 60)), [9, 9]]
SAMPLINGS = [SamplingParams(), SamplingParams(1.2, seed=3), SamplingParams(repetition_penalty=1.2)]


@pytest.fixture
def compare(make_engine: Make, run_all: Run) -> Callable[..., Any]:
    """compare(draft model, device=None): the engine that drafted, after its texts were found to be the usual ones."""

    def run(drafter: DraftModel, **options: Any) -> Any:
        found = []
        plain = make_engine("silu", 2, deterministic=True, speculate="off", max_sequences=4)
        engine = make_engine("silu", 2, drafter=drafter, deterministic=True, max_sequences=4, **options)
        draft_always(engine, drafter, 3)
        for one in (plain, engine):
            texts = [one.add_request(p, s, max_tokens=24) for p, s in zip(PROMPTS, SAMPLINGS, strict=True)]
            run_all(one)
            found.append([text.generated for text in texts])
        assert found[0] == found[1]
        return engine

    return run


def test_a_draft_model_that_is_the_model_is_always_right(draft: Any, make_engine: Make, run_all: Run) -> None:
    """For greedy texts: then its cache is right after any number of accepted tokens."""
    drafter = draft(deterministic=True)
    engine = make_engine("silu", 2, drafter=drafter, deterministic=True)
    for count in (1, 3, 7):
        draft_always(engine, drafter, count)
        text = engine.add_request([*PROMPTS[1], count], max_tokens=30)
        run_all(engine)
        assert text.accepted_tokens == text.draft_tokens > 10


@pytest.mark.parametrize("seed", [2, 5])
def test_texts_are_those_without_it(seed: int, draft: Any, compare: Any) -> None:
    """A good and a bad draft model, with one request slot for each text."""
    drafter = draft(seed, max_sequences=4)
    engine = compare(drafter)
    figures = engine.figures()
    assert figures["draft_tokens"] > figures["accepted_tokens"] > 0
    assert (figures["accepted_tokens"] > 0.4 * figures["draft_tokens"]) == (seed == 2)


@pytest.mark.parametrize("options", [{"max_sequences": 1}, {"kv_cache_size": 2 * 2 * 64 * 2 * 16 * 2 * 2}])
def test_a_draft_model_without_room_drafts_for_some(options: dict[str, int], draft: Any, compare: Any) -> None:
    """One request slot, or a cache of two blocks, for three texts."""
    drafter = draft(2, **options)
    engine = compare(drafter)
    assert engine.figures()["accepted_tokens"] > 0
    assert drafter.engine.block_pool.owned <= 2


def test_what_is_rejected_is_overwritten(draft: Any) -> None:
    """Proposals after texts that went another way are those of a fresh draft model."""
    drafter, draw = draft(2), np.random.default_rng(0)

    class Text:
        def __init__(self, tokens: list[int]) -> None:
            self.tokens, self.finish_reason = tokens, None

    text: Any = Text(draw.integers(0, VOCAB, 20).tolist())
    for accepted in (3, 0, 2, 7, 1, 5):
        drafts = drafter.propose({text: 7})[text]
        fresh: Any = Text(list(text.tokens))
        assert drafter.propose({fresh: 7}) == {fresh: drafts}
        fresh.finish_reason = "stop"
        text.tokens += [*drafts[:accepted], int(draw.integers(0, VOCAB))]
    assert drafter.engine.block_pool.owned == 2
    drafter.close()


def test_a_lost_draft_device_ends_speculation_alone(
    draft: Any, compare: Any, faulty: Any, caplog: pytest.LogCaptureFixture
) -> None:
    device = faulty()
    drafter = draft(2, device)
    count = iter(range(100))

    def lose(*_: Any) -> None:
        if next(count) > 5:
            raise DeviceLostError("gone")

    device.before["download"] = lose
    engine = compare(drafter)
    assert engine.figures()["draft_tokens"] > 0
    assert "the draft model failed (gone)" in caplog.text
    assert caplog.text.count("speculation is off") == 1


def test_the_engine_closes_it(draft: Any, make_engine: Make) -> None:
    device = NumpyDevice()
    engine = make_engine("silu", 2, drafter=draft(2, device), deterministic=True)
    engine.close()
    with pytest.raises(ValueError, match="close"):
        device.alloc(64)


def test_states_that_cannot_go_back_are_refused() -> None:
    from bitnet_core.formats.synthetic import SyntheticSource

    engine = Engine(SyntheticSource("bonsai2-tiny"), NumpyDevice(), EngineOptions(max_sequences=1))
    with pytest.raises(UsageError, match="cannot be a draft model"):
        DraftModel(engine)
    engine.close()
