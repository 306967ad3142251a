"""Launches that copy delta net states, so that one recording copies those of all layers.

They use embed_rows, which copies the rows of an f32 table that a step buffer lists: here all rows in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import View
from bitnet_hal.kernels.catalogue import CATALOGUE, DENSE_TYPES, STEP_FIELDS
from bitnet_hal.launcher import Launch, Launcher

from bitnet_core.model.config import ModelConfig

_WIDEST = 4096
"""Maximum f32 values per copied row."""
_F32 = DENSE_TYPES.index("f32")


def copied_rows(config: ModelConfig) -> npt.NDArray[np.int32]:
    """Return the step buffer i32[rows, 4] of all copies."""
    sizes = config.delta.state_sizes if config.delta else (1,)
    rows = np.zeros((max(size // _width(size) for size in sizes), STEP_FIELDS), np.int32)
    rows[:, 0] = np.arange(len(rows))
    return rows


def state_copies(launcher: Launcher, rows: View, sources: Sequence[View], targets: Sequence[View]) -> list[Launch]:
    """Return the launches that copy views of f32 to others of the same sizes, in other buffers. rows: `copied_rows` on
    the device."""
    launches: list[Launch] = []
    for source, target in zip(sources, targets, strict=True):
        width = _width(source.nbytes // 4)
        count = source.nbytes // (4 * width)
        step = rows.part(0, 4 * STEP_FIELDS * count)
        params = {"rows": count, "hidden": width, "first": 0, "count": count}
        launches.append(launcher.prepare(CATALOGUE["embed_rows"], params, (source, step, target), {"DTYPE": _F32}))
    return launches


def _width(size: int) -> int:
    return math.gcd(size, _WIDEST)
