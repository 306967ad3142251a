"""Positions of checkpoints of delta-net states: near the end of a prompt, and at ends of steps of long prompts."""

from __future__ import annotations

import pytest
from bitnet_core.engine.request.request import Request
from bitnet_core.engine.sampling.sampler import Sampler
from bitnet_core.engine.schedule.state_positions import prompt_checkpoint, rows_to_block_end, rows_to_checkpoint
from bitnet_core.options.sampling import SamplingParams


@pytest.mark.parametrize(
    ("tokens", "chunk", "position"),
    [(30, 256, 0), (64, 256, 64), (70, 256, 64), (130, 256, 64), (150, 256, 128), (256, 256, 256), (320, 256, 256)],
)
def test_the_checkpoint_of_a_prompt(tokens: int, chunk: int, position: int) -> None:
    assert prompt_checkpoint(tokens, chunk) == position


@pytest.mark.parametrize(
    ("computed", "count", "rows"),
    [(0, 150, 128), (0, 300, 256), (128, 100, 64), (448, 52, 52), (448, 20, 20), (384, 100, 64), (400, 70, 48)],
)
def test_steps_end_at_blocks(computed: int, count: int, rows: int) -> None:
    """Take a prompt of 500 tokens, whose checkpoint is at 448."""
    request = Request(list(range(500)), 8, Sampler(SamplingParams(), 512, 500), frozenset())
    request.computed = computed
    assert rows_to_checkpoint(request, count, 256) == rows
    assert rows_to_block_end(request) == 64 - computed % 64
