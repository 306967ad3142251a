"""Compare the texts of requests that share steps with the texts that each request has alone."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
from bitnet_hal.device import Device

from bitnet_core.engine.engine import Engine
from bitnet_core.engine.kv_cache.cache import cache_bytes
from bitnet_core.engine.request.request import Request
from bitnet_core.engine.speculation.prompt_lookup import PromptLookup
from bitnet_core.engine.speculation.simulated import SimulatedDrafter
from bitnet_core.formats.open import open_model
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.sampling import SamplingParams
from bitnet_core.testing.drafts import draft_always, draft_never

BLOCKS = 5
"""Cache blocks of 64 tokens: fewer than TOGETHER requests need."""
TOGETHER = 5
"""Largest number of concurrent requests."""


@dataclass(frozen=True)
class Arrival:
    """A request, the step at which it arrives, and the number of further steps after which it is cancelled (0:
    never)."""

    prompt: list[int]
    sampling: SamplingParams
    arrival: int
    cancelled_after: int


def drawn(requests: int, vocab: int) -> list[Arrival]:
    """Return random requests, whose prompts end a few tokens before the end of a cache block.

    Half are seeded, half share a prefix of one block, every fifth is cancelled.
    """
    rng = np.random.default_rng(45)
    prefix = rng.integers(0, vocab, 66).tolist()
    found = []
    for number in range(requests):
        own = rng.integers(0, vocab, rng.integers(42, 62)).tolist()
        sampling = SamplingParams(temperature=0.8, top_k=40, seed=number) if number % 2 else SamplingParams()
        prompt = prefix + own if number % 4 < 2 else own
        found.append(Arrival(prompt, sampling, int(rng.integers(0, requests)), 4 if number % 5 == 4 else 0))
    return found


def check(device: Device, *, requests: int, tokens: int) -> None:
    """Compare the texts of `requests` concurrent requests of up to `tokens` tokens with those that each has alone;
    closes the device.

    Concurrent steps also verify draft tokens as far as rows allow, most of them right. Raises AssertionError if a text
    differs, or if no request was preempted, reused a prefix or shared a step, or no draft token was accepted.
    """
    source = open_model(Path(str(files("bitnet_core") / "data" / "stories.gguf")))
    options = EngineOptions(
        max_sequences=TOGETHER,
        kv_cache_size=cache_bytes(source.config, "f16", BLOCKS, 0),
        stream_interval=1e-3,
        deterministic=True,
    )
    engine = Engine(source, device, options)
    try:
        asked = drawn(requests, engine.config.tokens)
        draft_never(engine)
        alone = [_alone(engine, one, tokens) for one in asked]
        if engine.worker.verify_rows:
            texts = {tuple(one.prompt): text for one, text in zip(asked, alone, strict=True)}
            draft_always(engine, SimulatedDrafter(PromptLookup(), texts, 0.8, engine.config.tokens), 2)
        before = dict(engine.scheduler.counts)
        together, most = _together(engine, asked, tokens)
        counts = {name: count - before[name] for name, count in engine.scheduler.counts.items()}
    finally:
        engine.close()
    for number, (one, wanted, got) in enumerate(zip(asked, alone, together, strict=True)):
        kind = "seeded" if one.sampling.seed is not None else "greedy"
        wanted = wanted[: len(got)] if one.cancelled_after else wanted
        assert got == wanted, (
            f"the {kind} text of request {number} depends on others: token "
            f"{next((at for at, pair in enumerate(zip(got, wanted, strict=False)) if pair[0] != pair[1]), len(got))}"
        )
    if engine.sequences > 1:
        assert most > 1, "no two requests shared a step"
        assert counts["preemptions"] > 0, "the cache was not full"
        assert counts["prefix_hits"] > 0, "no prefix was reused"
        assert counts["draft_tokens"] > counts["accepted_tokens"] > 0, "no draft tokens were verified"


def _alone(engine: Engine, one: Arrival, tokens: int) -> list[int]:
    """Return the tokens generated for a request on an idle engine with an empty cache."""
    with engine.lock:
        engine.worker.drop_runner()
    request = engine.add_request(one.prompt, one.sampling, max_tokens=tokens)
    while engine.step():
        pass
    return request.tokens[len(one.prompt) :]


def _together(engine: Engine, asked: list[Arrival], tokens: int) -> tuple[list[list[int]], int]:
    """Return the tokens of every request, each added at its step, and the largest number of running requests."""
    with engine.lock:
        engine.worker.drop_runner()
    added: dict[int, Request] = {}
    started: dict[int, int] = {}
    step = most = 0
    while True:
        for number, one in enumerate(asked):
            if number not in added and one.arrival <= step:
                added[number] = engine.add_request(one.prompt, one.sampling, max_tokens=tokens)
            elif number in added and one.cancelled_after:
                request = added[number]
                began = started.setdefault(number, step) if len(request.tokens) > len(one.prompt) else step
                if request.finish_reason is None and step - began >= one.cancelled_after:
                    engine.finish_request(request)
        busy = engine.step()
        most = max(most, len(engine.scheduler.running))
        step += 1
        if not busy and len(added) == len(asked) and not (engine.scheduler.running or engine.scheduler.waiting):
            return [added[at].tokens[len(one.prompt) :] for at, one in enumerate(asked)], most
