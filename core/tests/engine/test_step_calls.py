"""The Python calls of a steady greedy step: the host's time of every token."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import bitnet_core

CORE = str(Path(bitnet_core.__file__).parent)


def test_a_steady_greedy_step_takes_few_calls_of_core(make_engine: Callable[..., Any]) -> None:
    """Count all steps of a text but the one that ends it: the least neither takes a block of the cache nor fills one,
    the worst does."""
    engine = make_engine(context=256)
    request = engine.add_request([1, 2, 3], max_tokens=200)
    while request.generated_tokens < 20:
        engine.step()
    steps: list[list[str]] = []
    grown = 0
    while True:
        blocks = len(request.blocks)
        calls = _files_of_calls(engine.step)
        if request.finish_reason is not None:
            break
        steps.append(calls)
        grown += len(request.blocks) > blocks
    assert grown
    least, worst = min(steps, key=len), max(steps, key=len)
    assert 0 < len(least) <= 25
    assert len(worst) <= 35
    assert max(len(set(files)) for files in steps) <= 8


def _files_of_calls(function: Callable[[], object]) -> list[str]:
    """Run a function and return the file of each call of core's."""
    files: list[str] = []

    def record(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(CORE):
            files.append(frame.f_code.co_filename)

    sys.setprofile(record)
    try:
        function()
    finally:
        sys.setprofile(None)
    return files
