"""Sampling defaults that a model file states."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bitnet_core.engine.sampling.defaults import SamplingDefaults, sampling_defaults
from bitnet_core.errors import ModelError
from bitnet_core.formats.open import open_model
from bitnet_core.options.sampling import SamplingParams

UNTIED = Path(__file__).parents[2] / "golden" / "qwen3" / "qwen3-untied"


def said(arch: str = "llama", **metadata: Any) -> SamplingDefaults:
    return sampling_defaults(SimpleNamespace(path=Path("m"), metadata=metadata, config=SimpleNamespace(arch=arch)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("form", "origin"),
    [("PQ2_0.gguf", "the Qwen3 family"), ("hf", "generation_config.json"), ("mlx", "generation_config.json")],
)
def test_of_files_and_of_the_family(form: str, origin: str) -> None:
    found = sampling_defaults(open_model(UNTIED / form))
    assert found == SamplingDefaults(SamplingParams(0.6, 20, 0.95), origin)
    assert found.described() == "temperature 0.6, top-k 20, top-p 0.95"


def test_where_nobody_says_it_is_greedy() -> None:
    assert said() == SamplingDefaults()
    assert said(generation_config={"eos_token_id": 1}).values.temperature == 0
    assert said("qwen3", generation_config={"do_sample": False, "temperature": 0.6}).values.temperature == 0


def test_keys_of_gguf() -> None:
    keys = {"general.sampling.temp": 0.5, "general.sampling.top_k": 40, "general.sampling.min_p": 0.05}
    assert said("qwen3", **keys) == SamplingDefaults(SamplingParams(0.5, 40, min_p=0.05), "the model file")
    assert said(generation_config={"do_sample": True, "top_k": -1}) == SamplingDefaults(
        SamplingParams(1.0), "generation_config.json"
    )


@pytest.mark.parametrize("value", ["x", -1, True, [0.5], float("inf"), float("nan")])
def test_what_makes_no_sense_is_refused(value: Any) -> None:
    with pytest.raises(ModelError, match="temperature"):
        said(generation_config={"do_sample": True, "temperature": value})
