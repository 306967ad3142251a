"""Ternary weights from float matrices: master weights by absmean; floats that are ternary already, with one scale for
the matrix or for each group of columns, exactly."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError
from bitnet_core.formats.ternary.codes import Bytes, pack, pack_rows, row_chunks
from bitnet_core.formats.ternary.scales import collapse
from bitnet_core.model.weights import TernaryWeight, padded

Floats = npt.NDArray[np.float32]

MIN_SCALE = 1e-5


def absmean(rows: int, columns: int, values_of: Callable[[slice], Floats]) -> TernaryWeight:
    """Quantize as BitNet does: scale = max(mean |W|, 1e-5); codes clip(round_even(W / scale), -1, 1) + 1.

    values_of: returns f32[n, columns] of a slice of rows; called twice a slice. Raises ModelError for values that are
    not finite.
    """
    total = 0.0
    for part in row_chunks(rows, columns):
        magnitudes = np.abs(values_of(part))
        if not np.isfinite(magnitudes).all():
            raise ModelError("a weight is infinite or not a number")
        total += float(magnitudes.sum(dtype=np.float64))
    scale = np.float32(max(total / (rows * columns), MIN_SCALE))
    inverse = np.float32(1) / scale

    def codes_of(part: slice) -> Bytes:
        with np.errstate(over="ignore"):  # overflows to infinity, which is clipped
            codes: Bytes = (np.clip(np.rint(values_of(part) * inverse), -1, 1) + 1).astype(np.uint8)
        return codes

    return TernaryWeight(rows, columns, pack_rows(rows, columns, codes_of), np.array([scale], np.float32))


def is_ternary(rows: int, columns: int, values_of: Callable[[slice], Floats]) -> bool:
    """Return whether the first rows hold a single magnitude beside zero, which master weights never do."""
    magnitudes = np.abs(values_of(next(row_chunks(rows, columns))))
    return bool(((magnitudes == 0) | (magnitudes == magnitudes.max())).all())


def exact(rows: int, columns: int, values_of: Callable[[slice], Floats]) -> TernaryWeight:
    """Return the weight of floats that are already -s, 0 and s with one s for the whole matrix.

    Raises ModelError if they are not.
    """
    packed = np.empty((rows, padded(columns) // 4), np.uint8)
    scale = np.float32(0)
    for part in row_chunks(rows, columns):
        values = values_of(part)
        magnitudes = np.abs(values)
        if not scale:
            scale = magnitudes.max()
        if not ((magnitudes == 0) | (magnitudes == scale)).all():
            raise ModelError("the floats are not ternary; quantize the model, or use its ternary file")
        packed[part] = pack((np.sign(values) + 1).astype(np.uint8))
    return TernaryWeight(rows, columns, packed, np.array([scale or 1], np.float32))


def group_of(values: Floats) -> int:
    """Return the columns of the groups of f32[n, columns] that hold one magnitude beside zero: 128, 64, or all; 0 if
    none do."""
    columns = values.shape[1]
    for group in (128, 64, columns):
        if columns % group == 0:
            magnitudes = np.abs(values).reshape(len(values), -1, group)
            if ((magnitudes == 0) | (magnitudes == magnitudes.max(axis=2, keepdims=True))).all():
                return group
    return 0


def grouped(rows: int, columns: int, values_of: Callable[[slice], Floats]) -> TernaryWeight:
    """Return the weight of floats that are already -d, 0 and d, with one d for each group of columns of a row.

    Raises ModelError if they are not: master weights are not quantized here.
    """
    group = group_of(values_of(next(row_chunks(rows, columns))))
    if not group:
        raise ModelError(
            "the floats are not ternary in groups of 128 or 64 columns: master weights, or not a ternary model"
        )
    packed = np.empty((rows, padded(columns) // 4), np.uint8)
    scales = np.empty((rows, columns // group), np.float32)
    for part in row_chunks(rows, columns):
        values = values_of(part)
        magnitudes = np.abs(values).reshape(len(values), -1, group)
        scales[part] = magnitudes.max(axis=2)
        if not ((magnitudes == 0) | (magnitudes == scales[part][:, :, None])).all():
            raise ModelError(f"a group of {group} columns in rows {part.start} to {part.stop - 1} is not ternary")
        packed[part] = pack((np.sign(values) + 1).astype(np.uint8))
    return collapse(rows, columns, packed, scales, scales > 0, group)
