"""Scales of blocks and rows: collapsed to the coarsest kind that says the same, and spread out for a writer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError
from bitnet_core.formats.ternary.codes import Bytes, row_chunks, unpack
from bitnet_core.model.weights import BLOCK, TernaryWeight

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]


def collapse(rows: int, columns: int, codes: Bytes, scales: Floats, used: Flags, block: int) -> TernaryWeight:
    """A weight with canonical `codes` and scales f32[rows, columns / block], or one per row or for all if they agree,
    and one per 128 columns where those of all pairs of 64 do.

    used: bool[rows, columns / block], whether a block has a non-zero value. The scale of a block of zeros has no
    meaning: writers put 0 there. It agrees with any other and becomes 1 where it is kept.
    """
    found = scales[used]
    if not found.size or (found == found[0]).all():
        scale = found[:1] if found.size else np.ones(1, np.float32)
        return TernaryWeight(rows, columns, codes, scale.copy())
    filled = np.where(used, scales, -np.inf)
    of_row = filled.max(axis=1)
    if (np.where(used, scales, of_row[:, None]) == of_row[:, None]).all():
        of_row[~used.any(axis=1)] = 1
        return TernaryWeight(rows, columns, codes, of_row.astype(np.float32), "row")
    if block == BLOCK // 2 and columns % BLOCK == 0:
        halves = filled.reshape(rows, -1, 2)
        whole = halves.max(axis=2)
        if ((halves == whole[:, :, None]) | ~used.reshape(halves.shape)).all():  # blocks of 128, written twice
            whole[np.isneginf(whole)] = 1
            return TernaryWeight(rows, columns, codes, whole.astype(np.float32), "block", BLOCK)
    return TernaryWeight(rows, columns, codes, np.where(used, scales, np.float32(1)), "block", block)


def per_block(weight: TernaryWeight, block: int) -> Floats:
    """Scales f32[rows, columns / block]; 0 for blocks of zeros, as the public quantizers write them.

    Raises ModelError where the weight has finer scales than that.
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
    """Scales as f16 bytes u8[..., 2]. Raises ModelError where one is too large or too small for f16."""
    with np.errstate(over="ignore", under="ignore"):
        half = scales.astype("<f2")
    if not np.isfinite(half).all() or ((half == 0) & (scales != 0)).any():
        raise ModelError("a scale is outside the range of f16; choose a format with f32 scales, such as I2_S")
    return half[..., None].view(np.uint8)
