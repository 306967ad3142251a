"""TL1 of bitnet.cpp (ARM): a nibble per pair of columns, in tiles whose sizes are not stored.

Nibble v = 3 w0 + w1 + 4 = 3 c0 + c1 of columns 2j, 2j+1; the high nibble is the even pair. An f32 scale in a 32-byte
tail follows the codes.
"""

from __future__ import annotations

import numpy as np

from bitnet_core.errors import ModelError
from bitnet_core.formats.gguf.types import I2_S_TAIL
from bitnet_core.formats.ternary.codes import Bytes, pack_rows
from bitnet_core.formats.ternary.tiles import TL1_TILES, Tile, Tiles, tile_for
from bitnet_core.model.weights import TernaryWeight

_PAIRS = np.array(np.divmod(np.arange(9), 3), np.uint8).T  # the codes of both columns, by nibble


def decode(data: Bytes, rows: int, columns: int, tiles: Tiles | None = None) -> TernaryWeight:
    """Decode the matrix in `data` (codes, scale and padding).

    Raises ModelError if the tile is unknown, does not divide the matrix, or a nibble is illegal.
    """
    tile = tile_for("TL1", rows, columns, TL1_TILES, tiles)
    scale = data[-I2_S_TAIL:][:4].view("<f4").astype(np.float32)
    return TernaryWeight(rows, columns, decode_codes(data[:-I2_S_TAIL], rows, columns, tile), scale)


def decode_codes(data: Bytes, rows: int, columns: int, tile: Tile) -> Bytes:
    """Convert TL1 bytes u8[rows * columns / 4] to canonical codes."""
    bm = tile.inner_rows
    by = 256 // bm if bm in (16, 32, 64) else 0
    if not by or min(tile) < 1 or rows % tile.rows or tile.rows % bm or columns % tile.columns or tile.columns % by:
        raise ModelError(f"a TL1 tile of {tuple(tile)} does not divide a {rows} x {columns} matrix")
    if (data >> 4).max() > 8 or (data & 15).max() > 8:
        raise ModelError("illegal TL1 nibble above 8: the data is damaged, or another format")
    bands = data.reshape(
        rows // tile.rows, columns // tile.columns, tile.rows // bm, tile.columns // by, bm // 16, by // 4, 16
    )

    def codes_of(part: slice) -> Bytes:
        band = bands[part.start // tile.rows : part.stop // tile.rows]
        # [row tile, row group, 16-group, row, column tile, column group, byte] = rows x bytes in column order
        by_row = band.transpose(0, 2, 4, 6, 1, 3, 5).reshape(part.stop - part.start, columns // 4)
        nibbles = np.stack([by_row >> 4, by_row & 15], axis=2)
        return _PAIRS[nibbles].reshape(-1, columns)

    return pack_rows(rows, columns, codes_of, multiple=tile.rows)
