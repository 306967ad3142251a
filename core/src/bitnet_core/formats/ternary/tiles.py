"""Tile parameters of TL1 and TL2 files, which do not store them: known tiles by the matrix's shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bitnet_core.errors import ModelError


class Tile(NamedTuple):
    """A tile of rows (BM) x columns (BK), and the rows of the inner kernel (bm)."""

    rows: int
    columns: int
    inner_rows: int = 32


Tiles = Mapping[tuple[int, int], Tile]
"""The tile of each matrix shape (rows, columns)."""

TL1_TILES: Tiles = {
    (1536, 4096): Tile(256, 128, 32),
    (1536, 1536): Tile(128, 64, 64),
    (4096, 1536): Tile(256, 128, 32),
    (3200, 8640): Tile(160, 64, 32),
    (3200, 3200): Tile(320, 128, 64),
    (8640, 3200): Tile(320, 64, 32),
    (14336, 4096): Tile(256, 128, 32),
    (4096, 14336): Tile(128, 64, 64),
    (1024, 4096): Tile(256, 128, 32),
    (4096, 4096): Tile(128, 64, 64),
}
"""TL1 tiles of bitnet.cpp's generated kernels: 1bitLLM large and 3B, Llama3-8B."""

TL2_TILES: Tiles = {
    (1536, 4096): Tile(256, 96),
    (1536, 1536): Tile(128, 192),
    (4096, 1536): Tile(256, 96),
    (3200, 8640): Tile(160, 96),
    (3200, 3200): Tile(320, 96),
    (8640, 3200): Tile(320, 96),
    (14336, 4096): Tile(256, 96),
    (4096, 14336): Tile(128, 96),
    (1024, 4096): Tile(256, 96),
    (4096, 4096): Tile(128, 96),
}
"""TL2 tiles of the same models."""


def tile_for(kind: str, rows: int, columns: int, known: Tiles, given: Tiles | None) -> Tile:
    """Return the tile of a matrix: the given one, else the known one. Raises ModelError, with the sizes to pass, if
    there is neither."""
    tile = (given or {}).get((rows, columns)) or known.get((rows, columns))
    if tile is None:
        raise ModelError(
            f"{kind} files do not store their tile sizes, and none is known for a {rows} x {columns} matrix; "
            "pass the sizes that the file was made with, or use the model's I2_S file"
        )
    return tile
