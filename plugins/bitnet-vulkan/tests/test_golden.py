"""A tiny Bonsai 2 (gated delta nets, rotated weights) generates the same tokens as numpy, alone and in a batch."""

from __future__ import annotations

import sys
from pathlib import Path

import bitnet_core
import pytest
from bitnet_hal.discovery.selection import open_device
from bitnet_hal.errors import BackendUnavailableError

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

import delta_error  # noqa: E402 - found through the path above

GOLDEN = ROOT / "core" / "tests" / "golden" / "bonsai2" / "rotated-PTQ1_0.gguf"
PROMPTS = [[38 * n % 300 for n in range(1, 9)], [38 * n % 300 for n in range(1, 80)]]
"""No token of the answers is a near tie."""


def test_greedy_text() -> None:
    try:
        model = bitnet_core.load(GOLDEN, "vulkan")
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


def test_the_chunked_delta_rule_stays_near_float64_for_8192_positions() -> None:
    """In steps of 200 rows, which cut chunks anywhere."""
    try:
        device, _ = open_device("vulkan")
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    found = delta_error.errors(device, delta_error.drawn(8192, 2, 1, 32, 16), 200)
    device.close()
    assert max(found.values()) < 2e-6, found
