"""A tiny Bonsai 2 split over two emulated GPUs that read each other's memory says what numpy says."""

from __future__ import annotations

import sys
from pathlib import Path

import bitnet_core
import pytest
from bitnet_cuda.describe import device_infos
from bitnet_hal.p2p import probe

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from emulator import build  # noqa: E402 - found through the path above

GOLDEN = HERE.parents[3] / "core" / "tests" / "golden" / "bonsai2" / "rotated-PTQ1_0.gguf"

build.use()  # in this process alone: ../test_emulated.py starts it


def test_the_route() -> None:
    one, other = device_infos()
    assert probe(one, other) == probe(other, one) == "peer copy"


@pytest.mark.parametrize("prompts", [1, 3])
def test_greedy_text(prompts: int) -> None:
    given = [[38 * n % 300 for n in range(1, 9 + at)] for at in range(prompts)]
    with bitnet_core.load(GOLDEN, "numpy") as model:
        expected = [one.tokens for one in model.generate(given, max_tokens=12, temperature=0)]
        layers = model.config.n_layers
    with bitnet_core.load(GOLDEN, split=f"cuda:0:{layers // 2},cuda:1:{layers - layers // 2}") as model:
        texts = [one.tokens for one in model.generate(given, max_tokens=12, temperature=0)]
    assert texts == expected
