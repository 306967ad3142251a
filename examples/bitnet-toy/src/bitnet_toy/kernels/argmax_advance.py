"""Append the greedy token of a row to history and step, and advance the row by one position.

logits f32[rows][stride], the first vocab of each row; mask i32[rows][ceil(vocab / 32)] (MASK); index i32[rows]; tables
i32[sequences][max_blocks]; step i32[*][4]; history i32[*][ring + 1]. A workgroup: one row of logits.
"""

from __future__ import annotations

import numpy as np

from bitnet_toy.kernels.floats import F32, I32


def argmax_advance(
    gx: int,
    gy: int,
    logits: F32,
    mask: I32,
    index: I32,
    tables: I32,
    step: I32,
    history: I32,
    rows: int,
    vocab: int,
    stride: int,
    max_blocks: int,
    ring: int,
    MASK: int,
    SPLITS: int,
) -> None:
    row = np.int64(index[gx])
    if step[4 * row + 1] < 0:
        return
    token, largest = -1, np.float32(0)
    for n in range(vocab):
        if MASK and not (mask[gx * ((vocab + 31) // 32) + n // 32] >> n % 32) & 1:
            continue
        value = logits[gx * stride + n]
        if np.isnan(value):
            token = -1
            break
        if token < 0 or value > largest:
            token, largest = n, value
    history[row * (ring + 1)] += 1
    if history[row * (ring + 1)] <= ring:
        history[row * (ring + 1) + history[row * (ring + 1)]] = token
    position, block = step[4 * row + 1] + 1, -1
    if position // 64 < max_blocks:
        block = tables[step[4 * row + 3] * max_blocks + position // 64]
    step[4 * row] = token
    if token < 0 or block < 0:
        step[4 * row + 1] = step[4 * row + 2] = -1
    else:
        step[4 * row + 1], step[4 * row + 2] = position, block * 64 + position % 64
