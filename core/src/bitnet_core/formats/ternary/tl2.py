"""TL2 of bitnet.cpp (x86): triples of columns as a nibble and a sign bit, and pairs for the remaining columns.

threeK = columns in whole tiles; twoK = the rest. Three sections follow each other: magnitudes |9 w0 + 3 w1 + w2| of the
triples as nibbles, their signs as bits of u16 words, and pair nibbles 3 w0 + w1 + 4 as in TL1. Zeros pad them to the
size that the writer reserves; an f32 scale in a 32-byte tail ends the tensor.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError
from bitnet_core.formats.gguf.types import I2_S_TAIL
from bitnet_core.formats.ternary.codes import Bytes, pack_rows
from bitnet_core.formats.ternary.tiles import TL2_TILES, Tile, Tiles, tile_for
from bitnet_core.model.weights import TernaryWeight

_ROWS = 32  # rows of the inner kernel (bm), the same in every file
_PAIR_TILE = 32  # columns of a tile of the pair section
_PAIRS = np.array(np.divmod(np.arange(9), 3), np.uint8).T
_NUMBERS = np.arange(27)
_TRIPLES = np.stack([_NUMBERS // 9, _NUMBERS // 3 % 3, _NUMBERS % 3], axis=1).astype(np.uint8)  # by value + 13


def decode(data: Bytes, rows: int, columns: int, tiles: Tiles | None = None) -> TernaryWeight:
    """Decode the matrix in `data` (codes, padding, scale).

    Raises ModelError if the tile is unknown, does not divide the matrix, or a nibble is illegal.
    """
    tile = tile_for("TL2", rows, columns, TL2_TILES, tiles)
    scale = data[-I2_S_TAIL:][:4].view("<f4").astype(np.float32)
    return TernaryWeight(rows, columns, decode_codes(data[:-I2_S_TAIL], rows, columns, tile), scale)


def decode_codes(data: Bytes, rows: int, columns: int, tile: Tile) -> Bytes:
    """Convert the three sections of a TL2 tensor to canonical codes."""
    if min(tile) < 1 or rows % tile.rows or tile.rows % _ROWS or tile.columns % 24 or tile.inner_rows != _ROWS:
        raise ModelError(f"a TL2 tile of {tuple(tile)} does not divide a {rows} x {columns} matrix")
    three = columns // tile.columns * tile.columns
    two = columns - three
    sizes = rows * three // 6, rows * three // 24, rows * two // 4
    if two % _PAIR_TILE or sum(sizes) > data.size:
        raise ModelError(f"a TL2 tile of {tuple(tile)} does not fit a {rows} x {columns} matrix")
    magnitudes, signs, pairs = np.split(data[: sum(sizes)], np.cumsum(sizes)[:2])
    if _highest(magnitudes) > 13 or _highest(pairs) > 8:
        raise ModelError("illegal TL2 nibble: the data is damaged, or another format")
    bands = rows // tile.rows
    shape = (bands, three // tile.columns, tile.rows // _ROWS)
    triple_bytes = magnitudes.reshape(*shape, tile.columns // 6, _ROWS)
    sign_words = signs.view("<u2").reshape(*shape, tile.columns // 24, 16)
    pair_bytes = pairs.reshape(bands, two // _PAIR_TILE, tile.rows // _ROWS, _PAIR_TILE // 4, _ROWS)

    def codes_of(part: slice) -> Bytes:
        band = slice(part.start // tile.rows, part.stop // tile.rows)
        n = part.stop - part.start
        value = _nibbles(triple_bytes[band], n).astype(np.int8)
        value = np.where(_signs(sign_words[band], n), -value, value)
        triples = _TRIPLES[value + 13].reshape(n, three)
        return np.concatenate([triples, _PAIRS[_nibbles(pair_bytes[band], n)].reshape(n, two)], axis=1)

    return pack_rows(rows, columns, codes_of, multiple=tile.rows)


def _highest(nibbles: Bytes) -> int:
    return int(max((nibbles >> 4).max(initial=0), (nibbles & 15).max(initial=0)))


def _nibbles(groups: Bytes, rows: int) -> Bytes:
    """Convert [band, tile, row group, byte, 32 rows] to nibbles [rows, columns in order]; the four 8-byte quarters of
    32 rows are stored in the order 0, 2, 1, 3."""
    quarters = groups.reshape(*groups.shape[:4], 4, 8)[..., [0, 2, 1, 3], :]
    by_row = quarters.transpose(0, 2, 4, 5, 1, 3).reshape(rows, -1)
    return np.stack([by_row >> 4, by_row & 15], axis=2).reshape(rows, -1)


def _signs(words: npt.NDArray[np.uint16], rows: int) -> npt.NDArray[np.bool_]:
    """Convert [band, tile, row group, 24-column group, 16 words] to the negative flags bool[rows, triples]. Bit 15 - (2
    t + h) of word w is the sign of triple t (0..7) of row 16 h + w."""
    bits = (words[..., None] >> np.arange(15, -1, -1, dtype=np.uint16)) & np.uint16(1)
    by_row = bits.reshape(*words.shape, 8, 2).transpose(0, 2, 6, 4, 1, 3, 5)
    return by_row.reshape(rows, -1).astype(np.bool_)
