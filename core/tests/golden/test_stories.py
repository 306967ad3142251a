"""The shipped model on the numpy device says what transformers says, token for token."""

from __future__ import annotations

import json
from pathlib import Path

import bitnet_core
import pytest

GOLDEN = json.loads(Path(__file__).with_name("stories.json").read_text())
"""Made by examples/stories/golden.py, in float32 and from the packed safetensors of the same weights."""


def test_golden_data_is_safe() -> None:
    assert len(GOLDEN["cases"]) == 5
    for case in GOLDEN["cases"]:
        assert len(case["ids"]) == 64
        assert case["margin"] >= 0.1


@pytest.mark.parametrize("kv_dtype", ["f32", "f16"])
def test_greedy_continuations(kv_dtype: str) -> None:
    with bitnet_core.load("stories", "numpy", kv_dtype=kv_dtype) as model:
        for case in GOLDEN["cases"]:
            result = model.generate(case["prompt_ids"], max_tokens=64)
            assert list(result.tokens) == case["ids"], case["prompt"]
            assert result.text == case["text"]


def test_prompts_give_the_same_tokens() -> None:
    with bitnet_core.load("stories", "numpy") as model:
        plain = [case for case in GOLDEN["cases"] if "<|" not in case["prompt"]]
        assert len(plain) == 4
        for case in plain:
            assert model.tokenizer.encode(case["prompt"], add_bos=True) == case["prompt_ids"]
