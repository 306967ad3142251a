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
    """A steady step is one that neither takes a new block of the cache nor fills one: the least of several."""
    engine = make_engine(context=256)
    request = engine.add_request([1, 2, 3], max_tokens=200)
    while request.generated_tokens < 20:
        engine.step()
    files = min((_files_of_calls(engine.step) for _ in range(4)), key=len)
    assert 0 < len(files) <= 25
    assert len(set(files)) <= 8


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
