"""Whole models: the one that core ships says the same on every device, token for token, and so does a drawn one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from bitnet_hal.device import BATCH_INVARIANT_ROWS, Device, DeviceType
from bitnet_hal.discovery.request import DeviceRequest
from bitnet_hal.discovery.selection import BackendStartupSummary
from bitnet_hal.kernels.catalogue import CATALOGUE, DELTA_KERNELS
from bitnet_hal.reference.device import NumpyDevice
from bitnet_hal.testing.cases.registry import cases_of
from bitnet_hal.testing.workbench import Bench

from bitnet_core.api import Model
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.options import EngineOptions
from bitnet_core.engine.run.batch import ScheduledTokens
from bitnet_core.engine.sampling.logits import LogitsRequest
from bitnet_core.formats.open import open_model
from bitnet_core.testing.drawn import DrawnSource
from bitnet_core.tokenizer import load_tokenizer


@dataclass(frozen=True)
class Story:
    """A prompt, and the greedy tokens after it.

    At each of them the largest logit is at least `margin` above the second: another order of f32 sums, or another
    cache type, moves int8 codes that lie on a rounding boundary by one, and logits by hundredths, sometimes by a tenth.
    """

    prompt: str
    prompt_ids: tuple[int, ...]
    text: str
    ids: tuple[int, ...]
    margin: float


def golden_stories() -> list[Story]:
    """Continuations of 64 tokens by the shipped model's weights in another program: transformers in float32. They were
    made by examples/stories/golden.py."""
    content = json.loads((files("bitnet_core") / "testing" / "stories.json").read_text())
    return [
        Story(case["prompt"], tuple(case["prompt_ids"]), case["text"], tuple(case["ids"]), case["margin"])
        for case in content["cases"]
    ]


def shipped(device: Device, kv_dtype: str) -> Model:
    """The shipped model; closing it closes the device."""
    source = open_model(Path(str(files("bitnet_core") / "data" / "stories.gguf")))
    info = device.info
    summary = BackendStartupSummary(DeviceRequest(info.backend, info.index), (info.backend,), info)
    return Model(source, load_tokenizer(source.tokenizer), device, summary, EngineOptions(kv_dtype))


FEW_STORIES, FEW_TOKENS = {"f16": 3, "f32": 1}, 24
"""What a CPU behind a GPU's API says, where a step may take a second: with f16 one of the texts gets to a third block
of the cache; what is different with f32, storing and reading, has cases of kernels at all sizes."""

PROMPTS = [1, 9, 40, 70]
"""Tokens of the prompts for the drawn model."""

SLACK = 0.12
"""How far below numpy's largest logit that of a token may be which a device takes: twice what was seen where sums of
another order moved int8 codes. The logits' standard deviation is 0.9."""


class ModelRules:
    """All kernels together, through prompts, recordings and the paged cache."""

    @pytest.mark.parametrize("kv_dtype", ["f16", "f32"])
    def test_the_shipped_model_says_what_it_should(self, bench: Bench, kv_dtype: str) -> None:
        """Greedy tokens after several prompts, all in one batch, are those of transformers."""
        _needs_every_kernel(bench)
        with shipped(bench.backend.open(bench.index), kv_dtype) as model:
            software = bench.device.info.type is DeviceType.SOFTWARE
            stories = golden_stories()[: FEW_STORIES[kv_dtype] if software else None]
            most = FEW_TOKENS if software else None
            streams = [model.generate(one.prompt_ids, max_tokens=len(one.ids[:most]), stream=True) for one in stories]
            for one, stream in zip(stories, streams, strict=True):
                for _ in stream:
                    pass
                said = tuple(stream.result.tokens)
                assert said == one.ids[:most], _difference(model, one, said)

    def test_a_model_with_scales_of_blocks_says_what_numpy_says(self, bench: Bench) -> None:
        """Greedy tokens of a drawn model with scales of blocks, QK-norm and ternary tables, several texts in a batch:
        each is numpy's likeliest after the same tokens, or its logit is within SLACK of that one's."""
        self._check_drawn(bench, "bonsai-tiny")

    def _check_drawn(self, bench: Bench, shape: str) -> None:
        _needs_every_kernel(bench)
        options = EngineOptions(max_sequences=len(PROMPTS))
        texts = _drawn_texts(Engine(DrawnSource(shape=shape), bench.backend.open(bench.index), options))
        reference = Engine(DrawnSource(shape=shape), NumpyDevice(), options)
        for length, text in zip(PROMPTS, texts, strict=True):
            logits = reference.logits(text)[length - 1 : -1, : reference.config.tokens]
            for row, token in zip(logits, text[length:], strict=True):
                assert token < len(row), f"id {token} has no token, and must never be chosen"
                best = int(row.argmax())
                assert row[best] - row[token] <= SLACK, (
                    f"after a prompt of {length} tokens the device takes {token} (logit {row[token]:.3f} of numpy's), "
                    f"where numpy takes {best} ({row[best]:.3f})"
                )
        reference.close()

    def test_a_model_with_delta_nets_says_what_numpy_says(self, bench: Bench) -> None:
        """The same of a drawn model with gated delta nets and rotated weights, where the device has their kernels."""
        if lacking := DELTA_KERNELS - bench.device.info.kernels:
            pytest.skip(f"the device does not offer {', '.join(sorted(lacking))}")
        self._check_drawn(bench, "bonsai2-tiny")

    @pytest.mark.parametrize("kv_dtype", ["f16", "f32", "int8"])
    def test_a_row_is_the_same_among_few(self, bench: Bench, kv_dtype: str) -> None:
        """The feature "batch-invariant": logits of a step of 2 to BATCH_INVARIANT_ROWS rows have the bits of steps of
        one row, with scales of rows and of blocks, after few and after many positions."""
        if "batch-invariant" not in bench.device.info.features:
            pytest.skip("the device does not say that it has the feature 'batch-invariant'")
        _needs_every_kernel(bench)
        stories = open_model(Path(str(files("bitnet_core") / "data" / "stories.gguf")))
        for source in (stories, DrawnSource()):
            engine = Engine(source, bench.backend.open(bench.index), EngineOptions(kv_dtype, max_sequences=1))
            try:
                for prompt in (9, 300):
                    _check_like_rows(engine, prompt)
            finally:
                engine.close()


def _check_like_rows(engine: Engine, prompt: int) -> None:
    """Tokens after a prompt, one by one and then together."""
    draw = np.random.default_rng(prompt)
    tokens = draw.integers(0, engine.config.tokens, prompt + BATCH_INVARIANT_ROWS).tolist()
    with engine.scheduler.borrow_index(len(tokens)) as req_index:
        runner, chunk = engine._ready(), engine.scheduler.chunk
        for start in range(0, prompt, chunk):
            runner.forward(
                [ScheduledTokens(req_index, start, tuple(tokens[start : min(start + chunk, prompt)]))], (), chunk
            )
        places = range(prompt, len(tokens))
        alone = [
            runner.decode_step([ScheduledTokens(req_index, at, (tokens[at],))], [LogitsRequest(0)])[0].full().copy()
            for at in places
        ]
        for rows in range(2, BATCH_INVARIANT_ROWS + 1):
            span = ScheduledTokens(req_index, prompt, tuple(tokens[prompt : prompt + rows]))
            together = runner.forward([span], range(rows), chunk)
            for row, one in enumerate(alone[:rows]):
                assert np.array_equal(together[row, : len(one)], one), (
                    f"after {prompt} tokens row {row} of {rows} differs from the same row alone by up to "
                    f"{np.abs(together[row, : len(one)] - one).max():.3g}"
                )


def _needs_every_kernel(bench: Bench) -> None:
    """Skips where a kernel is not offered."""
    for spec in CATALOGUE.values():
        if spec.base:
            launch = cases_of(spec.name)[0].launch()
            bench.compiled(spec, launch.constants, launch.params)


def _drawn_texts(engine: Engine) -> list[list[int]]:
    """Prompts and 16 greedy tokens after each; the engine is closed."""
    draw = np.random.default_rng(0)
    try:
        sequences = [engine.add_request(draw.integers(0, engine.config.tokens, n), max_tokens=16) for n in PROMPTS]
        while engine.step():
            pass
        return [request.tokens for request in sequences]
    finally:
        engine.close()


def _difference(model: Model, told: Story, said: tuple[int, ...]) -> str:
    same = next((i for i, pair in enumerate(zip(said, told.ids, strict=False)) if pair[0] != pair[1]), len(said))
    wrong = model.tokenizer.decode(said)
    return f"token {same} after the prompt is another one: the model should say {told.text!r}, not {wrong!r}"
