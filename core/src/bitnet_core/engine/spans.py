"""Rows of a step: tokens of texts, and where their keys and values go."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from bitnet_hal.kernels.catalogue import STEP_FIELDS

from bitnet_core.engine.cache import KVCache


class Span(NamedTuple):
    """Consecutive tokens of one sequence, to be computed; lane is the sequence's row of the block tables."""

    lane: int
    position: int  # of the first
    tokens: tuple[int, ...]


def step_rows(cache: KVCache, spans: Sequence[Span], size: int) -> npt.NDArray[np.int32]:
    """i32[size, 4] step buffer; rows past those of `spans` store nothing and attend to nothing."""
    step = unused_rows(size)
    firsts, lanes, counts = np.array([(span.position, span.lane, len(span.tokens)) for span in spans]).T
    rows = int(counts.sum())
    positions = np.arange(rows) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
    lanes = np.repeat(lanes, counts)
    tokens = chain.from_iterable(span.tokens for span in spans)
    step[:rows, 0] = np.frombuffer(struct.pack(f"{rows}i", *tokens), np.int32)  # as fast as it gets
    step[:rows, 1] = positions
    step[:rows, 2] = cache.slots(lanes, positions)
    step[:rows, 3] = lanes
    return step


def unused_rows(size: int) -> npt.NDArray[np.int32]:
    """i32[size, 4] rows of a step buffer that do nothing: position and slot are -1."""
    step = np.zeros((size, STEP_FIELDS), np.int32)
    step[:, 1:3] = -1
    return step


def bucket(rows: int, most: int) -> int:
    """Row counts are rounded up to powers of two, at most `most`, so that few recordings serve all of them."""
    return min(1 << (rows - 1).bit_length(), most)
