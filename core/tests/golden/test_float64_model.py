"""The script that computes perplexity in float64, beside the engine, which rounds activations to int8."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import bitnet_core
import pytest

GOLDEN = Path(__file__).parent
TEXT = "Once upon a time there was a little dog."


@pytest.mark.parametrize("model", ["qwen3/qwen3-tied/Q2_0-g128.gguf", "bonsai2/rotated-PTQ1_0.gguf"])
def test_perplexity_is_nearly_that_of_rounded_activations(tmp_path: Path, model: str) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    script = (sys.executable, GOLDEN / "float64_model.py", GOLDEN / model, tmp_path / "text.txt")
    found = subprocess.run(script, check=True, capture_output=True, text=True, timeout=60, env=dict(os.environ))
    with bitnet_core.load(GOLDEN / model, "numpy") as loaded:
        rounded = loaded.perplexity(TEXT)
    exact = float(found.stdout)
    assert f"{rounded:.4f}" != f"{exact:.4f}"
    assert abs(rounded / exact - 1) < 0.1
