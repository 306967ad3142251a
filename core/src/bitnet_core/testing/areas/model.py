"""The whole model: the one that core ships says the same on every device, token for token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
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

BEGINNING = (
    "Once upon a time there was a shy fox named Mia. Next door lived Otto, an old bear who could eat all day.\n\n"
)
PROMPTS = tuple(
    BEGINNING + event
    for event in (
        "One Sunday Mia told Otto a secret.",
        "One Sunday Mia got the hiccups.",
        "One night the moon was gone.",
    )
)
TOKENS = 48
MARGIN = 0.5
"""Least distance of the two largest logits where another order of f32 sums, or another cache type, cannot change the
choice: it moves int8 codes that lie on a rounding boundary by one, and logits by hundredths, sometimes by a tenth."""
RUNS, LEAST = 8, 64
"""How many runs of clear choices are tried, the longest ones, and the tokens that they must have together."""


@dataclass(frozen=True)
class Told:
    """Tokens, and those that follow them, each clearly the best."""

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
    told: list[Told] = []
    with shipped(NumpyDevice(), "f16") as model:
        for text in PROMPTS:
            prompt = model.tokenizer.encode(text, add_bos=model.tokenizer.add_bos)
            tokens = model.generate(prompt, max_tokens=TOKENS).tokens
            second, best = np.sort(model.logits([*prompt, *tokens])[len(prompt) - 1 : -1], axis=1)[:, -2:].T
            told += _clear_runs(prompt, tokens, best - second)
    return tuple(sorted(told, key=lambda run: -len(run.tokens))[:RUNS])


def _clear_runs(prompt: Sequence[int], tokens: Sequence[int], margins: npt.NDArray[np.float32]) -> list[Told]:
    """The runs between choices that are too close to call, each after all that was said before it."""
    close = [-1, *np.flatnonzero(margins < MARGIN).tolist(), len(tokens)]
    return [
        Told((*prompt, *tokens[: start + 1]), tuple(tokens[start + 1 : end]))
        for start, end in pairwise(close)
        if end > start + 1
    ]


class ModelRules:
    """All kernels together, through prompts, recordings and the paged cache."""

    @pytest.mark.parametrize("kv_dtype", ["f16", "f32"])
    def test_the_shipped_model_says_what_it_should(self, bench: Bench, kv_dtype: str) -> None:
        """Greedy tokens after several beginnings, all in one batch, are those of the reference device."""
        for spec in CATALOGUE.values():
            if spec.base:
                launch = cases_of(spec.name)[0].launch()
                bench.kernel(spec, launch.constants, launch.params)  # skips where a kernel is not offered
        told = told_by_numpy()
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
