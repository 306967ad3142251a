"""Every code path says of a tiny Qwen3 model (scales of blocks, QK-norm, ternary tables) what numpy says."""

from __future__ import annotations

from pathlib import Path

import bitnet_core
import pytest
from bitnet_cpu.describe import usable_paths

GOLDEN = Path(__file__).parents[3] / "core" / "tests" / "golden" / "qwen3"
FILES = ["qwen3-untied/PQ2_0.gguf", "qwen3-tied/Q2_0-g64.gguf"]
PROMPT = [72, 101, 108, 108, 111, 44, 32, 119]


@pytest.mark.parametrize("file", FILES)
def test_greedy_text(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with bitnet_core.load(GOLDEN / file, "numpy") as model:
        expected = model.generate(PROMPT, max_tokens=32, temperature=0)
    assert len(expected.tokens) == 32
    for path in usable_paths():
        monkeypatch.setenv("BITNET_CPU_KERNEL", path)
        with bitnet_core.load(GOLDEN / file, "cpu") as model:
            assert model.device.info.extra["active_kernel"] == path
            found = model.generate(PROMPT, max_tokens=32, temperature=0)
        assert (found.tokens, found.text) == (expected.tokens, expected.text), path
