"""Upload of the token masks of a step's rows, only when they change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from bitnet_hal.rounding import ceil_div

from bitnet_core.engine.sampling.constraint import Mask
from bitnet_core.plan.scratch import Scratch


class RowMasks:
    """The mask buffer of a Scratch: constrained rows come first, all other rows allow every token."""

    def __init__(self, scratch: Scratch, tokens: int) -> None:
        self._scratch = scratch
        self._words = ceil_div(tokens, 32)
        self._open = np.zeros(scratch.wanted, np.bool_)  # rows that are known to allow every token

    def upload(self, masks: Sequence[Mask], rows: int) -> None:
        """Set the masks of the first rows, and allow every token in the other rows up to `rows`."""
        closed = np.flatnonzero(~self._open[:rows])
        written = max(len(masks), int(closed[-1]) + 1 if closed.size else 0)
        words = np.full((written, self._words), -1, np.int32)
        for row, mask in zip(words, masks, strict=False):
            row[:] = mask[: self._words]
        self._open[: len(masks)] = False  # before the upload, which may fail
        self._scratch.upload("mask", words)
        self._open[len(masks) : written] = True
