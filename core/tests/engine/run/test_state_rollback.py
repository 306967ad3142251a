"""Speculation in models with delta nets: rejected rows leave no trace in the states, and texts are those without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitnet_core.engine.capacity import concurrency
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.request.request import Request
from bitnet_core.engine.speculation.prompt_lookup import PromptLookup
from bitnet_core.engine.speculation.simulated import SimulatedDrafter
from bitnet_core.formats.open import open_model
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.sampling import SamplingParams
from bitnet_core.testing import texts
from bitnet_core.testing.drafts import draft_always, draft_never
from bitnet_hal.errors import UsageError
from bitnet_hal.reference.device import NumpyDevice

FILE = Path(__file__).parents[2] / "golden" / "bonsai2" / "rotated-PTQ1_0.gguf"
PROMPTS = [[7 * n % 300 for n in range(50)], [9], [11 * n % 300 for n in range(120)]]
SAMPLINGS = [SamplingParams(), SamplingParams(1.0, seed=3), SamplingParams(0.9, top_k=8, seed=5)]
TOKENS = 20


class Prophet:
    """A drafter that knows the texts by their prompts, and is right with probability 0.7."""

    kind = "lookup"

    def __init__(self, texts: Mapping[tuple[int, ...], list[int]]) -> None:
        self.texts = texts
        self.random = np.random.default_rng(7)

    def propose(self, limits: Mapping[Request, int]) -> dict[Request, list[int]]:
        drafts = {}
        for request, limit in limits.items():
            coming = self.texts[tuple(request.tokens[: request.prompt_tokens])][request.generated_tokens :][:limit]
            wrong = self.random.random(len(coming)) >= 0.7
            drafts[request] = [(token + int(no)) % 300 for token, no in zip(coming, wrong, strict=True)]
        return {request: draft for request, draft in drafts.items() if draft}

    def committed(self, request: Request, row: int, drafted: int, accepted: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def make(**options: Any) -> Engine:
    return Engine(open_model(FILE), NumpyDevice(), EngineOptions(deterministic=True, **options))


def said(engine: Engine, prompts: list[list[int]], samplings: list[SamplingParams]) -> list[Request]:
    pairs = zip(prompts, samplings, strict=True)
    requests = [engine.add_request(prompt, sampling, max_tokens=TOKENS) for prompt, sampling in pairs]
    while engine.step():
        pass
    return requests


def speculating(known_texts: list[Request], drafts: int, spares: int = 3) -> Engine:
    """Return an engine that has `drafts` draft tokens of each request in each step, if there is room."""
    engine = make(max_sequences=3)
    engine.worker.drop_runner()
    engine.worker.spares = spares
    engine._ready()
    known = {tuple(one.tokens[: one.prompt_tokens]): one.generated for one in known_texts}

    def limits(requests: list[Request], most: Mapping[Request, int], rows: int) -> dict[Request, int]:
        share = (rows - len(requests)) // len(requests)
        return {one: count for one in requests if (count := min(drafts, share, most[one]))}

    engine.scheduler.speculative.use(Prophet(known), engine.worker.verify_rows)
    policy: Any = engine.scheduler.speculative.policy
    policy.limits = limits
    policy.until_next = lambda requests, rows: 0
    return engine


@pytest.mark.parametrize(("count", "drafts"), [(1, 4), (3, 2)])
def test_texts_are_those_without_speculation(count: int, drafts: int) -> None:
    prompts = PROMPTS[:count]
    samplings = SAMPLINGS[-count:]
    plain = make(max_sequences=3, speculate="off")
    wanted = said(plain, prompts, samplings)
    engine = speculating(wanted, drafts)
    found = said(engine, prompts, samplings)
    assert [one.generated for one in found] == [one.generated for one in wanted]
    figures = engine.figures()
    assert figures["draft_tokens"] - 3 > figures["accepted_tokens"] > 8
    assert engine.memory_plan().kv_cache == engine.cache().nbytes
    following = [[*one.tokens, *range(50)] for one in found]
    engine.scheduler.speculative.use(None, 0)
    again = said(engine, following, samplings)
    assert [one.generated for one in again] == [one.generated for one in said(plain, following, samplings)]
    assert [one.cached_tokens for one in again] == [64, 0, 128][:count]
    for used in (plain, engine):
        used.close()


def test_texts_among_others_are_those_they_have_alone() -> None:
    """Requests that come and go, share prefixes and checkpoints, are preempted, and have drafts in every step."""
    engine = make(max_sequences=4)
    engine.worker.drop_runner()
    engine.worker.blocks = texts.BLOCKS
    asked = texts.drawn(7, 300)
    draft_never(engine)
    alone = [texts._alone(engine, one, 16) for one in asked]
    known = {tuple(one.prompt): text for one, text in zip(asked, alone, strict=True)}
    draft_always(engine, SimulatedDrafter(PromptLookup(), known, 0.7, 300), 2)
    before = dict(engine.scheduler.counts)
    together, most = texts._together(engine, asked, 16)
    counts = {name: count - before[name] for name, count in engine.scheduler.counts.items()}
    engine.close()
    assert most > 1
    assert min(counts["preemptions"], counts["prefix_hits"], counts["accepted_tokens"]) > 0
    for one, wanted, got in zip(asked, alone, together, strict=True):
        assert got == (wanted[: len(got)] if one.cancelled_after else wanted)


def test_a_small_budget_has_a_copy_for_the_time_of_a_step() -> None:
    source = open_model(FILE)
    size = source.config.state_bytes
    device = NumpyDevice()
    for states, room in ((16, (2, 4, 2)), (8, (1, 2, 1)), (4, (1, 0, 1)), (2, (1, 0, 0))):
        options = EngineOptions(deterministic=True, kv_cache_size=states * size)
        assert concurrency(options, source, device, 4, 64) == room
    source.close()


def test_a_step_copies_no_more_states_than_there_are_spares() -> None:
    wanted = said(make(max_sequences=3, speculate="off"), PROMPTS, SAMPLINGS)
    engine = speculating(wanted, 2, spares=1)
    found = said(engine, PROMPTS, SAMPLINGS)
    assert [one.generated for one in found] == [one.generated for one in wanted]
    assert engine.figures()["accepted_tokens"] > 5
    engine.close()


def test_without_room_for_a_copy_there_is_no_speculation() -> None:
    source = open_model(FILE)
    options = EngineOptions(deterministic=True, kv_cache_size=3 * source.config.state_bytes)
    with pytest.raises(UsageError, match=r"lookup\) was requested, but the cache has no room for a copy"):
        Engine(source, NumpyDevice(), replace(options, speculate="lookup"))
    engine = Engine(source, NumpyDevice(), options)
    assert engine.worker.spares == 0
    assert "no room for a copy" in engine.speculation.off
    assert engine.worker.verify_rows == 0
    engine.close()
