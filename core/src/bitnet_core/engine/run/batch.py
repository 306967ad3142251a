"""Build the batch inputs of a step: token ids, positions, cache slots and table rows."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from bitnet_hal.kernels.catalogue import KV_BLOCK, STEP_FIELDS
from bitnet_hal.rounding import ceil_div
from bitnet_hal.tuning.query import FEW_ROWS

from bitnet_core.engine.kv_cache.cache import KVCache

_SHORT = 64
"""Rows up to which a step buffer is built without numpy's operations, each of which costs as much as some rows."""


class ScheduledTokens(NamedTuple):
    """Consecutive tokens of one request to compute. req_index: the request's row of the block tables."""

    req_index: int
    position: int  # of the first token
    tokens: tuple[int, ...]


def build_batch(cache: KVCache, scheduled: Sequence[ScheduledTokens], size: int) -> npt.NDArray[np.int32]:
    """Build the i32[size, 4] step buffer (token, position, slot, table row); rows after those of `scheduled` are
    inactive."""
    step = unused_rows(size)
    if size <= _SHORT:
        fields = _fields(cache, scheduled)
        active = np.frombuffer(struct.pack(f"{len(fields)}i", *fields), np.int32)  # faster than np.array
        step.reshape(-1)[: len(active)] = active
        return step
    firsts, req_indices, counts = np.array([(span.position, span.req_index, len(span.tokens)) for span in scheduled]).T
    rows = int(counts.sum())
    positions = np.arange(rows) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
    req_indices = np.repeat(req_indices, counts)
    tokens = chain.from_iterable(span.tokens for span in scheduled)
    step[:rows, 0] = np.frombuffer(struct.pack(f"{rows}i", *tokens), np.int32)
    step[:rows, 1] = positions
    step[:rows, 2] = cache.slots(req_indices, positions)
    step[:rows, 3] = req_indices
    return step


def _fields(cache: KVCache, scheduled: Sequence[ScheduledTokens]) -> list[int]:
    """Return the fields of the rows one after the other, which is faster than numpy for a few rows."""
    fields: list[int] = []
    for req_index, first, tokens in scheduled:
        blocks = cache.blocks_of(req_index)
        for position, token in enumerate(tokens, first):
            block, place = divmod(position, KV_BLOCK)
            slot = blocks[block] * KV_BLOCK + place if block < len(blocks) else -1
            fields += (token, position, slot, req_index)
    return fields


def unused_rows(size: int) -> npt.NDArray[np.int32]:
    """Return i32[size, 4]: inactive rows of a step buffer, whose position and slot are -1."""
    step = np.zeros((size, STEP_FIELDS), np.int32)
    step[:, 1:3] = -1
    return step


@cache
def verified_rows(rows: int) -> int:
    """Return the rows, padding included, of a step that verifies draft tokens, so that few recordings serve all."""
    return rows if rows <= FEW_ROWS else ceil_div(rows, FEW_ROWS) * FEW_ROWS


@cache
def padded_rows(rows: int, most: int) -> int:
    """Round a row count up to a power of two, at most `most`, so that few recordings serve all counts."""
    return min(1 << (rows - 1).bit_length(), most)


def padded_prompt(rows: int, most: int) -> int:
    """Round the rows of a prompt step up to one of 32 sizes of at most 4,096, but at most `most`, so that few
    recordings serve all: the unused rows take the GPU less time than hundreds of launches take the host."""
    step = next((step for end, step in _PROMPT_STEPS if rows <= end), 1)
    return max(rows, min(ceil_div(rows, step) * step, most))


def prompt_sizes(most: int) -> list[int]:
    """Return the sizes to which `padded_prompt` rounds, up to `most`."""
    longest, _ = _PROMPT_STEPS[-1]
    return sorted({padded_prompt(rows, most) for rows in range(1, min(most, longest) + 1)})


_PROMPT_STEPS = ((256, 32), (512, 64), (2048, 128), (4096, 256))
"""Pairs (rows, multiple): row counts up to `rows` are rounded up to a multiple of `multiple`."""
