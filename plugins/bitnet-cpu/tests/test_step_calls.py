"""The Python calls of a steady greedy step on this device, those of core and of the contract included."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import step_calls


def test_the_worst_steady_step_takes_few_calls() -> None:
    """The worst step takes a block of the cache, fills one, and uploads a block table."""
    steps = step_calls.trace("cpu")
    assert len(steps) >= 5
    assert max(calls.total() for calls in steps) <= 120
    assert max(len({file for file, _ in calls}) for calls in steps) <= 15
