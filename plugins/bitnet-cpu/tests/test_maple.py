"""A tiny mixture of experts with sliding windows: every code path generates the same tokens as numpy, and gives the
logits of numpy."""

from __future__ import annotations

from pathlib import Path

import bitnet_core
import numpy as np
import pytest
from bitnet_cpu.describe import usable_paths

FILE = Path(__file__).parents[3] / "core" / "tests" / "golden" / "maple" / "TQ.gguf"
PROMPT = [23 * n % 256 for n in range(1, 90)]


@pytest.mark.parametrize("path", usable_paths())
def test_logits_are_numpys(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a float cache and the tokens one by one, and in prompts that share experts and cross windows."""
    monkeypatch.setenv("BITNET_CPU_KERNEL", path)
    with bitnet_core.load(FILE, "numpy", kv_cache_type="f32") as model:
        expected = model.engine.logits(PROMPT)
    with bitnet_core.load(FILE, "cpu", kv_cache_type="f32") as model:
        assert model.device.info.extra["active_kernel"] == path
        for chunk in (1, 7, 64):
            found = model.engine.logits(PROMPT, chunk)
            assert np.abs(found - expected).mean() <= 5e-3
            assert (found.argmax(axis=1) == expected.argmax(axis=1)).mean() >= 0.95


def test_texts_in_one_batch_are_what_they_are_alone() -> None:
    prompts = [PROMPT[:length] for length in (9, 40, 85)]
    with bitnet_core.load(FILE, "cpu", deterministic=True) as model:
        alone = [model.generate(prompt, max_tokens=24, temperature=0).tokens for prompt in prompts]
        together = model.generate(prompts, max_tokens=24, temperature=0)
    assert [one.tokens for one in together] == alone
