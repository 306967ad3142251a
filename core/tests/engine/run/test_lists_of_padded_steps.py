"""Top-k lists of decode steps whose number of rows is padded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from bitnet_core.engine.run.batch import ScheduledTokens
from bitnet_core.engine.sampling.logits import LogitsRequest


@pytest.mark.parametrize("rows", range(1, 8))
def test_values_are_the_logits_of_the_listed_tokens(make_engine: Callable[..., Any], rows: int) -> None:
    engine = make_engine("silu", 8)
    with engine.lock:
        runner = engine._ready()
        spans = []
        for _ in range(rows):
            index = engine.scheduler.admission._free_indices.pop()
            runner.cache.set_table(index, [engine.block_pool.allocate()])
            spans.append(ScheduledTokens(index, 0, (index + 1,)))
        steps = runner.decode_step(spans, [LogitsRequest(16)] * rows)
        for number, step in enumerate(steps):
            assert np.array_equal(step.values, step.full()[step.ids]), f"row {number} of {rows}"
