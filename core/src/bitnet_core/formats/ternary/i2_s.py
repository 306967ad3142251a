"""I2_S of bitnet.cpp: 2-bit codes of a whole matrix, then one f32 scale and 28 bytes of padding.

Three layouts share the type id and the size. W[rows, columns], code = value + 1, high bit pairs first:

- A: the flat row-major stream in blocks of 128; byte p of a block holds elements p, 32+p, 64+p, 96+p. Blocks run across
  rows if the columns are not a multiple of 128.
- B: the same with blocks of 64; byte p holds elements p, 16+p, 32+p, 48+p (ARM builds from 2026).
- C: byte (r/4) * columns + k holds rows r..r+3 of column k (x86 builds without activation parallelism).
"""

from __future__ import annotations

import numpy as np
from bitnet_hal.rounding import ceil_div

from bitnet_core.errors import ModelError
from bitnet_core.formats.gguf.types import I2_S_TAIL
from bitnet_core.formats.ternary.codes import Bytes, check_legal, pack_rows, row_chunks, unpack
from bitnet_core.model.weights import BLOCK, TernaryWeight
from bitnet_core.options.loading import Layout

LAYOUTS: tuple[Layout, ...] = ("A", "B", "C")

# Layout B read as A: true column 64 * (p // 16) + 16 * s + p % 16 of each 128-window is found at 32 * s + p.
_S, _P = np.divmod(np.arange(BLOCK), 32)
COLUMN_OF_B = 64 * (_P // 16) + 16 * _S + _P % 16
"""The true column (in its 128-window) of each column that results from decoding layout-B bytes as layout A."""


def decode(data: Bytes, rows: int, columns: int, layout: Layout = "A") -> TernaryWeight:
    """Decode the matrix in `data` (codes, scale and padding). With layout A and whole blocks in each row the result is
    a view of `data`.

    Raises ModelError if the layout cannot hold the shape or a code is illegal.
    """
    codes, tail = data[:-I2_S_TAIL], data[-I2_S_TAIL:]
    check_legal(codes)
    scale = tail[:4].view("<f4").astype(np.float32)
    return TernaryWeight(rows, columns, _canonical(codes, rows, columns, layout), scale)


def _canonical(codes: Bytes, rows: int, columns: int, layout: Layout) -> Bytes:
    if not fits(rows, columns, layout):
        raise ModelError(f"I2_S layout {layout} cannot hold a matrix of {rows} x {columns}")
    if layout == "C":
        quads = codes.reshape(rows // 4, columns)
        return pack_rows(rows, columns, lambda part: _rows_of_quads(quads, part), multiple=4)
    if columns % BLOCK == 0:
        packed = codes.reshape(rows, columns // 4)
        return packed if layout == "A" else pack_rows(rows, columns, lambda part: _columns_of_b(packed[part], columns))
    return pack_rows(rows, columns, lambda part: _rows_of_stream(codes, columns, part, layout))


def fits(rows: int, columns: int, layout: Layout) -> bool:
    """Return whether the layout can hold a matrix of this shape."""
    if layout == "C":
        return rows % 4 == 0
    return rows * columns % (BLOCK if layout == "A" else BLOCK // 2) == 0


def _rows_of_quads(quads: Bytes, part: slice) -> Bytes:
    """Return the codes of rows part.start.. (a multiple of four) in layout C."""
    shifts = np.array([6, 4, 2, 0], np.uint8).reshape(1, 4, 1)
    codes = (quads[part.start // 4 : part.stop // 4, None, :] >> shifts) & np.uint8(3)
    return codes.reshape(part.stop - part.start, quads.shape[1])


def _columns_of_b(packed: Bytes, columns: int) -> Bytes:
    """Undo the permutation that results from reading layout B as layout A."""
    read = unpack(packed, columns).reshape(-1, columns // BLOCK, BLOCK)
    return read[:, :, np.argsort(COLUMN_OF_B)].reshape(-1, columns)


def _rows_of_stream(codes: Bytes, columns: int, part: slice, layout: Layout) -> Bytes:
    """Decode rows of layouts A and B whose blocks run across rows: unpack the blocks that touch them, and cut the rows
    out."""
    block = BLOCK if layout == "A" else BLOCK // 2
    first, last = part.start * columns // block, ceil_div(part.stop * columns, block)
    quarter = block // 4
    blocks = codes[first * quarter : last * quarter].reshape(-1, 1, quarter)
    stream = ((blocks >> np.array([6, 4, 2, 0], np.uint8).reshape(4, 1)) & np.uint8(3)).reshape(-1)
    start = part.start * columns - first * block
    return stream[start : start + (part.stop - part.start) * columns].reshape(-1, columns)


def encode(weight: TernaryWeight) -> Bytes:
    """Encode in layout A, with scale and zeroed padding.

    Raises ModelError for more than one scale, or if the size is not a multiple of 128.
    """
    if weight.scale_kind != "tensor":
        raise ModelError(f"I2_S holds one scale per matrix, and this one has a scale per {weight.scale_kind}")
    if not fits(weight.rows, weight.columns, "A"):
        raise ModelError(f"I2_S cannot hold a matrix of {weight.rows} x {weight.columns}")
    size = weight.rows * weight.columns // 4
    data = np.zeros(size + I2_S_TAIL, np.uint8)
    data[size : size + 4] = weight.scales.astype("<f4").view(np.uint8)
    if weight.columns % BLOCK == 0:
        data[:size] = weight.codes.reshape(-1)
        return data
    for part in row_chunks(weight.rows, weight.columns, multiple=BLOCK):  # 128 rows always end at the end of a block
        stream = unpack(weight.codes[part], weight.columns).reshape(-1, 4, 32)
        packed = stream[:, 0] << 6 | stream[:, 1] << 4 | stream[:, 2] << 2 | stream[:, 3]
        data[part.start * weight.columns // 4 : part.stop * weight.columns // 4] = packed.reshape(-1)
    return data
