"""Prompt lookup: guesses from a text's own past, checked in one step, and the same text as without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from bitnet_core.engine.speculation.prompt_lookup import NgramIndex
from bitnet_core.engine.speculative import DRAFT_TOKENS, AcceptanceStats
from bitnet_hal.device import DeviceInfo
from bitnet_hal.errors import GpuError, UsageError
from bitnet_hal.reference.device import NumpyDevice

Make = Callable[..., Any]
Run = Callable[[Any], None]


class Alike(NumpyDevice):
    """Says that a row is the same among others; of the tiny models' choices that is so."""

    def __init__(self) -> None:
        super().__init__()
        self.info: DeviceInfo = replace(self.info, features=self.info.features | {"batch-invariant"})


def expected(tokens: list[int]) -> list[int]:
    """What followed the latest earlier place of the last 3, 2 or 1 tokens, over and over where the text ends."""
    for length in (3, 2, 1):
        for at in range(len(tokens) - 1, length - 1, -1):
            if tokens[at - length : at] == tokens[-length:]:
                return ((tokens[at:] * DRAFT_TOKENS) if len(tokens) - at < DRAFT_TOKENS else tokens[at:])[:DRAFT_TOKENS]
    return []


@pytest.mark.parametrize("seed", range(20))
def test_guesses_are_what_came_after_the_same_tokens_before(seed: int) -> None:
    draw = np.random.default_rng(seed)
    lookup, tokens = NgramIndex(), draw.integers(0, 5, int(draw.integers(1, 20))).tolist()
    for _ in range(60):
        assert lookup.following(tokens, DRAFT_TOKENS) == expected(tokens)
        tokens += draw.integers(0, 5, int(draw.integers(1, 4))).tolist()


def test_checks_go_on_while_they_pay() -> None:
    acceptance = AcceptanceStats()
    for seconds in (9.0, 9.0, 1.1, 1.1, 1.1, 1.1):  # the first two compile and record
        assert acceptance.worthwhile(1.0)
        acceptance.update(seconds, 2)
    assert acceptance.worthwhile(1.0)
    assert (acceptance.seconds, acceptance.tokens) == (pytest.approx(1.1), 2)
    for _ in range(30):
        acceptance.update(1.1, 1)
    chances = [acceptance.worthwhile(1.0) for _ in range(64)]
    assert sum(chances) == 4
    for _ in range(8):
        acceptance.update(1.1, 5)
    assert acceptance.worthwhile(1.0)


@pytest.mark.parametrize("seed", [0, 1, 3, 4, 5])
@pytest.mark.parametrize("kv_dtype", ["f16", "f32", "int8"])
def test_texts_are_the_same_with_and_without(make_engine: Make, run_all: Run, seed: int, kv_dtype: str) -> None:
    """Of a prompt that says its own beginning and what follows again, so that some guesses are right."""
    prompt = np.random.default_rng(seed).integers(0, 60, 12).tolist()
    plain = make_engine("silu", seed, kv_dtype=kv_dtype)
    first = plain.add_request(prompt, max_tokens=30)
    run_all(plain)
    again = [*first.tokens, *prompt]
    wanted = plain.add_request(again, max_tokens=40)
    run_all(plain)
    looking = make_engine("silu", seed, Alike(), kv_dtype=kv_dtype, prompt_lookup="on")
    found = looking.add_request(again, max_tokens=40)
    run_all(looking)
    assert found.generated == wanted.generated
    assert found.finish_reason == wanted.finish_reason == "length"
    figures = looking.figures()
    assert figures["draft_tokens"] > figures["accepted_tokens"] > 0
    assert figures["generated_tokens"] == 40
    assert looking.kernel_launches["embed_rows"] < 40


def repeating(make_engine: Make, run_all: Run, **options: Any) -> tuple[Any, list[int], list[int]]:
    """(engine, prompt, what it says after it): a text that comes to repeat itself."""
    engine = make_engine("silu", 2, Alike(), prompt_lookup="on", **options)
    text = engine.add_request([1, 2, 3, 1, 2, 3, 1, 2], max_tokens=90)
    run_all(engine)
    return engine, text.tokens[:8], text.generated


def test_a_text_ends_where_it_would(make_engine: Make, run_all: Run) -> None:
    """At its limit, at the context's, and at a token that ends it among those that were guessed right."""
    engine, prompt, said = repeating(make_engine, run_all, context=100)
    assert engine.figures()["accepted_tokens"] > 10
    for limit in range(1, 40):
        text = engine.add_request(prompt, max_tokens=limit)
        run_all(engine)
        assert text.generated == said[:limit]
    for stop in set(said):
        text = engine.add_request(prompt, max_tokens=80, stop_token_ids=[stop])
        run_all(engine)
        assert (text.generated, text.finish_reason) == (said[: said.index(stop)], "stop")
    text = engine.add_request(prompt, max_tokens=200)
    run_all(engine)
    assert len(text.tokens) == 100
    assert text.generated[:90] == said


def test_texts_beside_others_are_not_guessed(make_engine: Make, run_all: Run) -> None:
    engine, prompt, said = repeating(make_engine, run_all, context=128)
    before = engine.figures()["draft_tokens"]
    texts = [engine.add_request(prompt, max_tokens=30) for _ in range(2)]
    run_all(engine)
    assert [text.generated for text in texts] == [said[:30]] * 2
    assert engine.figures()["draft_tokens"] == before


def test_logits_that_are_not_numbers_end_a_text_that_is_checked(
    make_engine: Make, run_all: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, prompt, _ = repeating(make_engine, run_all, context=128)
    runner = engine._ready()
    heads = runner._heads

    def broken(scratch: Any, rows: int, wanted: Any, wants: Any, columns: int) -> Any:
        for scores in heads(scratch, rows, wanted, wants, columns):
            if rows == DRAFT_TOKENS + 1:
                nothing = np.full(columns, np.nan, np.float32)
                scores = type(scores)(lambda nothing=nothing: nothing)
            yield scores

    monkeypatch.setattr(runner, "_heads", broken)
    text = engine.add_request(prompt, max_tokens=60)
    run_all(engine)
    assert text.finish_reason == "error"
    assert isinstance(text.error, GpuError)


def test_quick_devices_are_left_alone(make_engine: Make, run_all: Run) -> None:
    """With "auto", where a burst of many tokens takes no longer than it may; slow ones are asked."""
    for seconds, drafted in ((1e6, False), (1e-9, True)):
        engine = make_engine("silu", 2, Alike(), stream_interval=seconds)
        engine.add_request([1, 2, 3, 1, 2, 3, 1, 2], max_tokens=60)
        run_all(engine)
        assert (engine.figures()["draft_tokens"] > 0) == drafted


def test_on_needs_rows_that_are_alike(make_engine: Make, run_all: Run) -> None:
    with pytest.raises(UsageError, match='prompt_lookup is "on", but numpy:0 is not batch-invariant'):
        make_engine("silu", prompt_lookup="on")
    with pytest.raises(UsageError, match="prompt_lookup must be one of auto, on, off, not 'often'"):
        make_engine("silu", prompt_lookup="often")
    engine = make_engine("silu")
    engine.add_request([1, 2, 3, 1, 2, 3, 1, 2], max_tokens=60)
    run_all(engine)
    assert engine.figures()["draft_tokens"] == 0
