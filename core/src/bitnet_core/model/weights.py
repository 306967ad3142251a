"""Weights in host memory, in the canonical form that the kernels read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from bitnet_hal.kernels.types import DENSE_BLOCKS, DenseType
from bitnet_hal.rounding import round_up

BLOCK = 128
"""Columns of one ternary block: 32 bytes; byte p holds columns p (bits 7-6), 32+p (5-4), 64+p (3-2), 96+p (1-0)."""

ScaleKind = Literal["tensor", "row", "block"]


def padded(columns: int) -> int:
    """Round columns up to whole ternary blocks."""
    return round_up(columns, BLOCK)


@dataclass(frozen=True, slots=True)
class TernaryWeight:
    """A matrix W[rows, columns] with values (code - 1) * scale; codes 0, 1, 2, and code 1 (zero) in the padding
    columns.

    codes: u8[rows, padded(columns) / 4], I2_S 128-blocks (layout A of Microsoft's files); may view a mapped file.
    scales: f32[1] for "tensor", f32[rows] for "row", f32[rows, ceil(columns / block)] for "block". block: columns that
    share a scale if scale_kind is "block" (64, 128 or 256), else 0. stored: 0, or the columns of a block if codes are
    u8[rows, columns / stored * (2 + stored / 4)], blocks of Q2_0 as a file has them, each with its f16 scale.
    """

    rows: int
    columns: int
    codes: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.float32]
    scale_kind: ScaleKind = "tensor"
    block: int = 0
    stored: int = 0

    @property
    def width(self) -> int:
        """Columns with padding."""
        return padded(self.columns)


@dataclass(frozen=True, slots=True)
class DenseWeight:
    """A matrix W[rows, columns] of an embedding or head, as raw bytes of `dtype`, row-major, rows of whole blocks.

    data: u8[rows, row_bytes]; may be a view of a mapped file.
    """

    dtype: DenseType
    rows: int
    columns: int
    data: npt.NDArray[np.uint8]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        elements, nbytes = DENSE_BLOCKS[self.dtype]
        return self.columns // elements * nbytes
