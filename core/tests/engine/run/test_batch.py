"""The number of rows of a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from bitnet_core.engine.run.batch import ScheduledTokens, build_batch, padded_prompt, prompt_sizes
from bitnet_hal.device import DeviceType
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyDevice


@pytest.mark.parametrize(
    ("rows", "padded"),
    [(1, 32), (32, 32), (131, 160), (257, 320), (513, 640), (1024, 1024), (1025, 1152), (2049, 2304), (4097, 4097)],
)
def test_few_numbers_of_rows_serve_prompts_of_every_length(rows: int, padded: int) -> None:
    assert padded_prompt(rows, 8192) == padded
    assert len(prompt_sizes(8192)) == 32


def test_a_step_is_not_padded_beyond_its_most_rows() -> None:
    assert padded_prompt(90, 100) == 96
    assert padded_prompt(97, 100) == 100
    assert prompt_sizes(100) == [32, 64, 96, 100]


def test_few_rows_and_many_have_the_same_fields(make_engine: Any) -> None:
    """Also a row whose block is missing, and rows on both sides of a block's end."""
    cache = make_engine(context=256).cache()
    cache.set_table(0, [5, 2])
    cache.set_table(1, [7])
    spans = [ScheduledTokens(1, 62, (3, 4, 5)), ScheduledTokens(0, 63, (9, 8)), ScheduledTokens(0, 120, (1,))]
    few, many = (build_batch(cache, spans, size) for size in (8, 80))
    assert few[:4].tolist() == [[3, 62, 510, 1], [4, 63, 511, 1], [5, 64, -1, 1], [9, 63, 383, 0]]
    assert few.tolist() == many[:8].tolist()
    assert few[6:].tolist() == [[0, -1, -1, 0]] * 2
    assert few.flags.writeable


@pytest.mark.parametrize("style", ["offline", "silu"])
def test_a_gpu_computes_the_same_with_unused_rows(make_engine: Any, run_all: Any, tiny: Any, style: str) -> None:
    texts = []
    for kind in (DeviceType.CPU, DeviceType.GPU):
        engine = make_engine(style, device=NumpyDevice(replace(numpy_info(), type=kind)))
        requests = [engine.add_request(tiny.PROMPT[:length], max_tokens=4) for length in (5, 41)]
        run_all(engine)
        requests.append(engine.add_request(tiny.PROMPT[3:40], max_tokens=4))
        run_all(engine)
        texts.append([request.generated for request in requests])
        assert set(engine._ready()._prompts._bodies) == ({46, 37} if kind is DeviceType.CPU else {64})
    assert texts[0] == texts[1]
