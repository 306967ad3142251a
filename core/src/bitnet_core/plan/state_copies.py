"""Launches that copy the delta net states of several requests at once, one for each buffer of states.

They use embed_rows, which copies the rows of an f32 table that a step buffer lists: a state is a few long rows. Rows
without a source are not written.
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

_WIDEST = 16384
"""Maximum f32 values per copied row."""
_F32 = DENSE_TYPES.index("f32")

States = Sequence[tuple[View, View]]
"""The two state buffers of each delta net, as in KVCache.states."""


def copied_rows(config: ModelConfig, sources: Sequence[int]) -> list[npt.NDArray[np.int32]]:
    """Return the step buffers i32[rows, 4] of the copies of both kinds of state. sources: for each target state the
    number of the state that is copied to it, -1 for none."""
    buffers: list[npt.NDArray[np.int32]] = []
    first = np.array(sources, np.int32)[:, None]
    for _, count in _rows(config):
        step = np.zeros((len(sources) * count, STEP_FIELDS), np.int32)
        step[:, 0] = np.where(first < 0, -1, first * count + np.arange(count)).ravel()
        buffers.append(step)
    return buffers


def copied_rows_bytes(config: ModelConfig, states: int) -> list[int]:
    """Return the bytes of the step buffers for a number of target states."""
    return [4 * STEP_FIELDS * states * count for _, count in _rows(config)]


def state_copies(
    launcher: Launcher, config: ModelConfig, steps: Sequence[View], sources: States, targets: States
) -> list[Launch]:
    """Return the launches that copy states of `sources` to `targets`, other buffers. steps: `copied_rows` on the
    device, for the first states of `targets`."""
    launches: list[Launch] = []
    for source_pair, target_pair in zip(sources, targets, strict=True):
        for (width, _), step, source, target in zip(_rows(config), steps, source_pair, target_pair, strict=True):
            rows = step.nbytes // (4 * STEP_FIELDS)
            params = {"rows": rows, "hidden": width, "first": 0, "count": source.nbytes // (4 * width)}
            views = (source, step, target.part(0, 4 * width * rows))
            launches.append(launcher.prepare(CATALOGUE["embed_rows"], params, views, {"DTYPE": _F32}))
    return launches


def _rows(config: ModelConfig) -> list[tuple[int, int]]:
    """Return the f32 values per copied row, and the rows of a state, for both kinds of state."""
    rows: list[tuple[int, int]] = []
    for size in config.delta.state_sizes if config.delta else ():
        width = math.gcd(size, _WIDEST)
        rows.append((width, size // width))
    return rows
