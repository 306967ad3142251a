"""Tiny Qwen3 models (block scales, QK-norm, ternary tables; delta nets, rotated weights): every code path generates the
same tokens as numpy, and stays near transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bitnet_core
import numpy as np
import pytest
from bitnet_cpu.describe import usable_paths

GOLDEN = Path(__file__).parents[3] / "core" / "tests" / "golden"
HYBRID = "bonsai2/rotated-PTQ1_0.gguf"
HEAD = "bonsai2/rotated-PQ2_0-MTP-Q8_0.gguf"
STEPS = {"qwen3/qwen3-untied/PQ2_0.gguf": 34, "qwen3/qwen3-tied/Q2_0-g64.gguf": 28, HYBRID: 38}
"""Of the tokens of a prompt after which every token of the text is decided by 0.11 or more, with scales of 32 columns
and of 128: more than most moved int8 codes change."""


@pytest.mark.parametrize("file", STEPS)
@pytest.mark.parametrize("block", [32, 128], ids="a{}".format)
def test_greedy_text(file: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = [STEPS[file] * n % 300 for n in range(1, 9)]
    with bitnet_core.load(GOLDEN / file, "numpy", activation_group_size=block) as model:
        expected = model.generate(prompt, max_tokens=32, temperature=0)
    assert len(expected.tokens) == 32
    for path in usable_paths():
        monkeypatch.setenv("BITNET_CPU_KERNEL", path)
        with bitnet_core.load(GOLDEN / file, "cpu", activation_group_size=block) as model:
            assert model.device.info.extra["active_kernel"] == path
            found = model.generate(prompt, max_tokens=32, temperature=0)
        assert (found.tokens, found.text) == (expected.tokens, expected.text), path


def test_delta_nets_stay_near_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean divergence of what int8 activations give from float32, in nats a token, and the likeliest tokens."""
    with np.load(GOLDEN / "bonsai2" / "reference.npz") as archive:
        tokens, first, wanted = archive["tokens_b"], int(archive["first_b"]), archive["logits_b"].astype(np.float64)
    for path in usable_paths():
        monkeypatch.setenv("BITNET_CPU_KERNEL", path)
        with bitnet_core.load(GOLDEN / HYBRID, "cpu") as model:
            found = model.engine.logits(tokens)[first:].astype(np.float64)
        p, q = (np.exp(rows - np.logaddexp.reduce(rows, axis=1, keepdims=True)) for rows in (wanted, found))
        assert (p * np.log(p / q)).sum(axis=1).mean() <= 1e-2, path
        assert (p.argmax(axis=1) == q.argmax(axis=1)).mean() >= 0.9, path


def test_texts_with_delta_nets_in_one_batch_are_what_they_are_alone() -> None:
    prompts = [[7 * n % 300 for n in range(length)] for length in (9, 40, 130)]
    with bitnet_core.load(GOLDEN / HYBRID, "cpu") as model:
        alone = [model.generate(prompt, max_tokens=24, temperature=0).tokens for prompt in prompts]
        together = model.generate(prompts, max_tokens=24, temperature=0)
    assert [one.tokens for one in together] == alone


@pytest.mark.parametrize("deterministic", [False, True])
def test_draft_tokens_of_the_models_own_head_change_no_text(deterministic: bool) -> None:
    """Draft tokens of random weights are nearly all wrong, so nearly every step restores the states of delta nets."""
    prompts = [[38 * n % 300 for n in range(1, length)] for length in (50, 9, 70)]
    texts = []
    for kind in ("off", "mtp"):
        options: Any = {"speculate": kind, "deterministic": deterministic, "max_sequences": 3}
        with bitnet_core.load(GOLDEN / HEAD, "cpu", **options) as model:
            policy: Any = model.engine.scheduler.speculative.policy
            policy.until_next = lambda requests, rows: 0
            policy.limits = lambda requests, most, rows: {
                one: limit for one in requests if (limit := min(rows // len(requests) - 1, 3, most[one]))
            }
            for some, sampling in ((prompts, {"temperature": 1.0, "seed": 3}), (prompts[:1], {"temperature": 0})):
                texts += [one.tokens for one in model.generate(some, max_tokens=20, **sampling)]
            assert (model.engine.figures()["draft_tokens"] > 60) == (kind == "mtp")
    assert texts[:4] == texts[4:]
