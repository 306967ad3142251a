"""The whole model: the one that core ships says the same on every device, token for token."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from bitnet_core.api import Model
from bitnet_core.engine.options import EngineOptions
from bitnet_core.formats.open import open_model
from bitnet_core.hal.device import Device
from bitnet_core.hal.request import DeviceRequest
from bitnet_core.hal.selection import BackendStartupSummary
from bitnet_core.kernels.catalogue import CATALOGUE
from bitnet_core.reference.device import NumpyDevice
from bitnet_core.testing.bench import Bench
from bitnet_core.testing.cases.registry import cases_of
from bitnet_core.tokenizer import load_tokenizer

PROMPTS = ("Once upon a time there was a", "The little dog", "One day, Anna and her friend went to the")
TOKENS = 40
MARGIN = 0.1
"""Least distance of the two largest logits where another order of f32 sums cannot change the choice: it moves int8
codes that lie on a rounding boundary by one, and logits by a few hundredths."""
LEAST = 30
"""Tokens that must be held against the reference, over all prompts."""


@dataclass(frozen=True)
class Told:
    """A prompt and the tokens that follow it, up to the first that is not clearly the best."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


def shipped(device: Device, kv_dtype: str) -> Model:
    """The shipped model; closing it closes the device."""
    source = open_model(Path(str(files("bitnet_core") / "data" / "stories.gguf")))
    info = device.info
    summary = BackendStartupSummary(DeviceRequest(info.backend, info.index), (info.backend,), info)
    return Model(source, load_tokenizer(source.tokenizer), device, summary, EngineOptions(kv_dtype))


@cache
def told_by_numpy() -> tuple[Told, ...]:
    """What the reference device says; core's own tests hold it against another implementation of the model."""
    told = []
    with shipped(NumpyDevice(), "f16") as model:
        for text in PROMPTS:
            prompt = model.tokenizer.encode(text, add_bos=model.tokenizer.add_bos)
            tokens = model.generate(prompt, max_tokens=TOKENS).tokens
            second, best = np.sort(model.logits([*prompt, *tokens])[len(prompt) - 1 : -1], axis=1)[:, -2:].T
            close = np.flatnonzero(best - second < MARGIN)
            told.append(Told(tuple(prompt), tuple(tokens[: close[0]] if close.size else tokens)))
    return tuple(told)


class ModelRules:
    """All kernels together, through prompts, recordings and the paged cache."""

    @pytest.mark.parametrize("kv_dtype", ["f16", "f32"])
    def test_the_shipped_model_says_what_it_should(self, bench: Bench, kv_dtype: str) -> None:
        """Greedy tokens of several prompts, all of them in one batch, are those of the reference device."""
        for spec in CATALOGUE.values():
            if spec.base:
                launch = cases_of(spec.name)[0].launch()
                bench.kernel(spec, launch.constants, launch.params)  # skips where a kernel is not offered
        told = [one for one in told_by_numpy() if one.tokens]
        assert sum(len(one.tokens) for one in told) >= LEAST, "the shipped model is never sure: this rule shows nothing"
        with shipped(bench.backend.open(bench.index), kv_dtype) as model:
            streams = [model.generate(one.prompt, max_tokens=len(one.tokens), stream=True) for one in told]
            for one, stream in zip(told, streams, strict=True):
                for _ in stream:
                    pass
                said = tuple(stream.result.tokens)
                assert said == one.tokens, _difference(model, one, said)


def _difference(model: Model, told: Told, said: tuple[int, ...]) -> str:
    same = next((i for i, pair in enumerate(zip(said, told.tokens, strict=False)) if pair[0] != pair[1]), len(said))
    right, wrong = (model.tokenizer.decode(tokens) for tokens in (told.tokens, said))
    return f"token {same} after the prompt is another one: the model should say {right!r}, not {wrong!r}"
