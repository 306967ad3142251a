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
    engine = make_engine(context=256)
    request = engine.add_request([1, 2, 3], max_tokens=200)
    while request.generated_tokens < 70:
        engine.step()
    files: list[str] = []

    def record(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(CORE):
            files.append(frame.f_code.co_filename)

    sys.setprofile(record)
    try:
        engine.step()
    finally:
        sys.setprofile(None)
    assert 0 < len(files) <= 40
    assert len(set(files)) <= 9
