"""The Python calls of a steady greedy step: the host's time of every token."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import bitnet_core
import pytest

CORE = str(Path(bitnet_core.__file__).parent)


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Objects of earlier tests may have finalizers, whose calls would be counted."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
def test_a_steady_greedy_step_takes_few_calls_of_core(make_engine: Callable[..., Any]) -> None:
    """Count all steps of a text: the least neither takes a block of the cache nor fills one, the worst does."""
    engine = make_engine(context=256)
    request = engine.add_request([1, 2, 3], max_tokens=200)
    while request.generated_tokens < 20:
        engine.step()
    steps: list[list[str]] = []
    grown = 0
    while request.finish_reason is None:
        blocks = len(request.blocks)
        steps.append(_files_of_calls(engine.step))
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
