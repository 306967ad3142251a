"""Scales of blocks and rows: collapse them to the coarsest equivalent kind, and expand them for a writer."""

from __future__ import annotations

from functools import reduce

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError
from bitnet_core.formats.ternary.codes import Bytes, row_chunks, unpack
from bitnet_core.model.weights import BLOCK, TernaryWeight

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]


def collapse(rows: int, columns: int, codes: Bytes, scales: Floats, used: Flags, block: int) -> TernaryWeight:
    """Return a weight with canonical `codes` and the coarsest equivalent of scales f32[rows, columns / block].

    That is one scale for the matrix, one per row, or one per 128 columns if each pair of 64 agrees. used: bool[rows,
    columns / block], true if a block has a non-zero value. The scale of a block of zeros has no meaning (writers store
    0): it agrees with any other, and becomes 1 if it is kept.
    """
    if (one := _agreed(scales.reshape(1, -1), used.reshape(1, -1))) is not None:
        return TernaryWeight(rows, columns, codes, one)
    if (of_rows := _agreed(scales, used)) is not None:
        return TernaryWeight(rows, columns, codes, of_rows, "row")
    if block == BLOCK // 2 and columns % BLOCK == 0:  # blocks of 128 may be stored as pairs of 64 with the same scale
        pairs = _agreed(scales.reshape(-1, 2), used.reshape(-1, 2))
        if pairs is not None:
            return TernaryWeight(rows, columns, codes, pairs.reshape(rows, -1), "block", BLOCK)
    return TernaryWeight(rows, columns, codes, np.where(used, scales, np.float32(1)), "block", block)


_LOOK = 1 << 12
"""Number of scales that are compared first: in most matrices with different scales these differ already."""


def _agreed(scales: Floats, used: Flags) -> Floats | None:
    """Return the scale f32[groups] shared by all used scales of each group f32[groups, n] (1 if none is used); None if
    they disagree."""
    few = max(1, _LOOK // scales.shape[1])
    if scales.size > _LOOK and _agreed(scales[:few, :_LOOK], used[:few, :_LOOK]) is None:
        return None
    every = bool(used.all())  # most matrices have no block of zeros, and need no copies of their scales
    least = _along(np.minimum, scales if every else np.where(used, scales, np.inf))
    most = _along(np.maximum, scales if every else np.where(used, scales, -np.inf))
    if not (least >= most).all():  # inf and -inf if none is used
        return None
    return np.where(least > most, 1, most).astype(np.float32)


def _along(pick: np.ufunc, groups: Floats) -> Floats:
    """Reduce each row by minimum or maximum in steps, because numpy is slow along a short axis."""
    found: Floats = reduce(pick, groups.T) if groups.shape[1] <= 4 else pick.reduce(groups, axis=1)
    return found


def per_block(weight: TernaryWeight, block: int) -> Floats:
    """Return scales f32[rows, columns / block]; 0 for blocks of zeros, as the public quantizers write them.

    Raises ModelError if the weight has finer scales.
    """
    if weight.scale_kind == "block" and weight.block % block:
        raise ModelError(f"a scale per {weight.block} columns does not fit blocks of {block}")
    blocks = weight.columns // block
    if weight.scale_kind == "block":
        scales = np.repeat(weight.scales, weight.block // block, axis=1)[:, :blocks]
    else:
        scales = np.broadcast_to(weight.scales.reshape(-1, 1), (weight.rows, blocks))
    used = np.empty((weight.rows, blocks), np.bool_)
    for part in row_chunks(weight.rows, weight.columns):
        codes = unpack(weight.codes[part], weight.columns)
        used[part] = (codes.reshape(-1, blocks, block) != 1).any(axis=2)
    return np.where(used, scales, np.float32(0))


def to_half(scales: Floats) -> Bytes:
    """Encode scales as f16 bytes u8[..., 2]. Raises ModelError if one is outside the range of f16."""
    with np.errstate(over="ignore", under="ignore"):
        half = scales.astype("<f2")
    if not np.isfinite(half).all() or ((half == 0) & (scales != 0)).any():
        raise ModelError("a scale is outside the range of f16; choose a format with f32 scales, such as I2_S")
    return half[..., None].view(np.uint8)
