"""Rules about whole models: the shipped model must generate transformers' tokens, random models those of the numpy
device."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from bitnet_hal.device import ANY_ROWS, Device, DeviceType
from bitnet_hal.discovery.request import DeviceRequest
from bitnet_hal.discovery.selection import BackendStartupSummary
from bitnet_hal.kernels.catalogue import CATALOGUE, DELTA_KERNELS, EXPERT_KERNELS
from bitnet_hal.reference.device import NumpyDevice
from bitnet_hal.testing.cases.registry import cases_of
from bitnet_hal.testing.workbench import Bench

from bitnet_core.api import Model
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.run.batch import ScheduledTokens
from bitnet_core.engine.sampling.logits import LogitsRequest
from bitnet_core.formats.open import open_model
from bitnet_core.options.engine import EngineOptions, KvCacheType
from bitnet_core.testing import texts
from bitnet_core.testing.drawn import DrawnSource
from bitnet_core.tokenizer import load_tokenizer


@dataclass(frozen=True)
class Story:
    """A prompt, and the greedy tokens after it.

    At each token the largest logit is at least `margin` above the second. Another order of f32 sums or another cache
    type moves int8 codes next to a rounding tie by one, and logits by hundredths, sometimes by a tenth.
    """

    prompt: str
    prompt_ids: tuple[int, ...]
    text: str
    ids: tuple[int, ...]
    margin: float


def golden_stories() -> list[Story]:
    """Return continuations of 64 tokens that transformers computed in float32 with the shipped model's weights.

    examples/stories/golden.py makes them.
    """
    content = json.loads((files("bitnet_core") / "testing" / "stories.json").read_text())
    return [
        Story(case["prompt"], tuple(case["prompt_ids"]), case["text"], tuple(case["ids"]), case["margin"])
        for case in content["cases"]
    ]


def shipped(device: Device, kv_cache_type: KvCacheType) -> Model:
    """Load the shipped model; closing it closes the device."""
    source = open_model(Path(str(files("bitnet_core") / "data" / "stories.gguf")))
    info = device.info
    summary = BackendStartupSummary(DeviceRequest(info.backend, info.index), (info.backend,), info)
    return Model(source, load_tokenizer(source.tokenizer), device, summary, EngineOptions(kv_cache_type))


FEW_TOKENS = 24
FEW_STORIES = {"f16": 3, "f32": 1}
"""Stories and tokens on software devices, whose steps may take a second.

With f16 one request reaches a third cache block; the cases of the kernels cover f32 caches at all sizes.
"""

PROMPTS = [1, 9, 40, 70]
"""Prompt lengths, in tokens, for the random models."""

SLACK = 0.12
"""Largest distance of the chosen token's logit below numpy's largest: twice the largest one seen when another order
of sums moved int8 codes. The logits have a standard deviation of 0.9."""


class ModelRules:
    """Rules that run all kernels together, through prompts, recordings and the paged cache."""

    @pytest.mark.parametrize("kv_cache_type", ["f16", "f32"])
    def test_the_shipped_model_says_what_it_should(self, bench: Bench, kv_cache_type: KvCacheType) -> None:
        """Greedy tokens after several prompts in one batch must equal those of transformers."""
        _needs_every_kernel(bench)
        with shipped(bench.backend.open(bench.index), kv_cache_type) as model:
            software = bench.device.info.type is DeviceType.SOFTWARE
            stories = golden_stories()[: FEW_STORIES[kv_cache_type] if software else None]
            most = FEW_TOKENS if software else None
            streams = [model.generate(one.prompt_ids, max_tokens=len(one.ids[:most]), stream=True) for one in stories]
            for one, stream in zip(stories, streams, strict=True):
                for _ in stream:
                    pass
                said = tuple(stream.result.tokens)
                assert said == one.ids[:most], _difference(model, one, said)

    def test_a_model_with_scales_of_blocks_says_what_numpy_says(self, bench: Bench) -> None:
        """Greedy tokens of a random model with group scales, QK-norm and ternary tables must be numpy's.

        Several requests run in one batch. A token passes if its logit on numpy is within SLACK of the largest one.
        """
        self._check_drawn(bench, "bonsai-tiny")

    def _check_drawn(self, bench: Bench, shape: str) -> None:
        _needs_every_kernel(bench)
        options = EngineOptions(max_sequences=len(PROMPTS))
        texts = _drawn_texts(Engine(DrawnSource(shape=shape), bench.backend.open(bench.index), options))
        reference = Engine(DrawnSource(shape=shape), NumpyDevice(), options)
        for length, text in zip(PROMPTS, texts, strict=True):
            logits = reference.logits(text)[length - 1 : -1, : reference.config.tokens]
            for row, token in zip(logits, text[length:], strict=True):
                assert token < len(row), f"id {token} stands for no token and must never be chosen"
                best = int(row.argmax())
                assert row[best] - row[token] <= SLACK, (
                    f"after a prompt of {length} tokens the device chose {token} (numpy's logit: {row[token]:.3f}), "
                    f"numpy {best} ({row[best]:.3f})"
                )
        reference.close()

    def test_a_model_with_delta_nets_says_what_numpy_says(self, bench: Bench) -> None:
        """Greedy tokens of a random model with gated delta nets and rotated weights must be numpy's, within SLACK."""
        if lacking := DELTA_KERNELS - bench.device.info.kernels:
            pytest.skip(f"the device does not offer {', '.join(sorted(lacking))}")
        self._check_drawn(bench, "bonsai2-tiny")

    def test_a_model_with_experts_says_what_numpy_says(self, bench: Bench) -> None:
        """Greedy tokens of a random model with a mixture of experts and sliding windows must be numpy's, within
        SLACK."""
        if lacking := (EXPERT_KERNELS | {"window_attention"}) - bench.device.info.kernels:
            pytest.skip(f"the device does not offer {', '.join(sorted(lacking))}")
        self._check_drawn(bench, "maple-tiny")

    @pytest.mark.parametrize("kv_cache_type", ["f16", "f32", "int8"])
    def test_a_row_is_the_same_beside_others(self, bench: Bench, kv_cache_type: KvCacheType) -> None:
        """With the option `deterministic`, the logits of a token must have the same bits alone, in a prompt, and in
        prompts cut into steps at other places, after few and after many positions.

        Models with one weight scale and with group scales, and a mixture of experts with f16 if the device
        runs it.
        """
        _needs_every_kernel(bench)
        stories = open_model(Path(str(files("bitnet_core") / "data" / "stories.gguf")))
        mixture = kv_cache_type == "f16" and EXPERT_KERNELS | {"window_attention"} <= bench.device.info.kernels
        for source in (stories, DrawnSource(), *([DrawnSource(shape="maple-tiny")] if mixture else [])):
            options = EngineOptions(kv_cache_type, max_sequences=LIKE_ROWS, deterministic=True)
            engine = Engine(source, bench.backend.open(bench.index), options)
            try:
                if engine.scheduler.chunk < 2:
                    pytest.skip("the device declares no batch-invariant rows")
                for prompt in (9, 70):
                    _check_like_rows(engine, prompt)
            finally:
                engine.close()

    def test_a_text_does_not_depend_on_other_requests(self, bench: Bench) -> None:
        """With the option `deterministic`, greedy and seeded texts must be those that each request has alone.

        Requests arrive in the middle of others, some are cancelled, prefixes are shared, and the cache is too small for
        all: requests are preempted and recomputed. Beside others, steps also verify draft tokens.
        """
        _needs_every_kernel(bench)
        software = bench.device.info.type is DeviceType.SOFTWARE
        requests, tokens = (6, 16) if software else (10, 24)
        texts.check(bench.backend.open(bench.index), requests=requests, tokens=tokens)


LIKE_ROWS = 8
"""Tokens whose logits are compared."""


def _check_like_rows(engine: Engine, prompt: int) -> None:
    """Compare the logits of LIKE_ROWS tokens after a prompt, computed one by one and in steps with others."""
    draw = np.random.default_rng(prompt)
    tokens = draw.integers(0, engine.config.tokens, prompt + LIKE_ROWS).tolist()
    with engine.scheduler.admission.borrow_index(len(tokens)) as req_index:
        runner = engine._ready()
        chunk = engine.scheduler.chunk

        def compute(first: int, end: int, wanted: int, rows: int) -> list[npt.NDArray[np.float32]]:
            """Compute tokens first..end - 1 in steps of `rows`; returns the logits of those from `wanted` on."""
            found: list[npt.NDArray[np.float32]] = []
            for start in range(first, end, rows):
                part = tuple(tokens[start : min(start + rows, end)])
                span = ScheduledTokens(req_index, start, part)
                asked = [row for row in range(len(part)) if start + row >= wanted]
                found += list(runner.forward([span], asked, chunk))
            return found

        compute(0, prompt, prompt, chunk)
        alone = []
        for at in range(prompt, len(tokens)):
            step = ScheduledTokens(req_index, at, (tokens[at],))
            alone.append(runner.decode_step([step], [LogitsRequest(0)])[0].full().copy())
        few = [(prompt, rows) for rows in (2, 3, 5, LIKE_ROWS)]
        for first, rows in (*few, (0, 7), (0, 64), (0, ANY_ROWS)):
            together = compute(first, len(tokens), prompt, min(rows, chunk))
            for row, (one, other) in enumerate(zip(alone, together, strict=True)):
                assert np.array_equal(other[: len(one)], one), (
                    f"after {prompt} tokens row {row} in steps of {min(rows, chunk)} rows from token {first} differs "
                    f"from the same row alone by up to {np.abs(other[: len(one)] - one).max():.3g}"
                )


def _needs_every_kernel(bench: Bench) -> None:
    """Skip the rule if the device does not offer a base kernel."""
    for spec in CATALOGUE.values():
        if spec.base:
            launch = cases_of(spec.name)[0].launch()
            bench.compiled(spec, launch.constants, launch.params)


def _drawn_texts(engine: Engine) -> list[list[int]]:
    """Return the prompts, each with 16 greedy tokens after it; closes the engine."""
    draw = np.random.default_rng(0)
    try:
        sequences = [engine.add_request(draw.integers(0, engine.config.tokens, n), max_tokens=16) for n in PROMPTS]
        while engine.step():
            pass
        return [request.tokens for request in sequences]
    finally:
        engine.close()


def _difference(model: Model, story: Story, said: tuple[int, ...]) -> str:
    same = next((i for i, pair in enumerate(zip(said, story.ids, strict=False)) if pair[0] != pair[1]), len(said))
    wrong = model.tokenizer.decode(said)
    return f"token {same} after the prompt differs: expected {story.text!r}, got {wrong!r}"
