"""A tiny Bonsai 2 (gated delta nets, rotated weights) generates the same tokens as numpy, alone and in a batch."""

from __future__ import annotations

from pathlib import Path

import bitnet_core
import pytest
from bitnet_hal.errors import BackendUnavailableError

GOLDEN = Path(__file__).parents[3] / "core" / "tests" / "golden" / "bonsai2" / "rotated-PTQ1_0.gguf"
PROMPTS = [[38 * n % 300 for n in range(1, 9)], [38 * n % 300 for n in range(1, 80)]]
"""No token of the answers is a near tie."""


def test_greedy_text() -> None:
    try:
        model = bitnet_core.load(GOLDEN, "metal")
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    with model, bitnet_core.load(GOLDEN, "numpy") as numpy:
        wanted, together, alone = (
            [one.tokens for one in on.generate(prompts, max_tokens=12, temperature=0)]
            for on, prompts in ((numpy, PROMPTS), (model, PROMPTS), (model, PROMPTS[:1]))
        )
    assert all(len(tokens) == 12 for tokens in wanted)
    assert together == wanted
    assert alone == wanted[:1]
