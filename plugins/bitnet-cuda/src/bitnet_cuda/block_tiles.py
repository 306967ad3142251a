"""Tunings of the kernels of block_tiles.cuh: 9 to 64 rows with the order of sums of block_rows.cuh."""

from __future__ import annotations

from bitnet_hal.errors import UnsupportedError
from bitnet_hal.plugin import FEW_ROWS, Constants, Params, Tuning
from bitnet_hal.rounding import ceil_div

from bitnet_cuda.kernels.portable.tiles import tuned
from bitnet_cuda.limits import MOST_SHARED, MULTIPROCESSORS

MOST_TILES = 3
"""The maximum number of tiles of eight rows of a block that has all rows."""
TILES_OF_SEVERAL = 2
"""The number of tiles if several blocks share the rows: 64 rows took 4 % less time than with three."""
TOGETHER = 2
"""The usual pieces of 16 weight rows of a round, if warps take all their columns in one step."""
WARPS_WITH_THREE = 16
"""The maximum number of warps with registers for three pieces in such a round."""
MOST_TOGETHER = 4
"""The maximum number of pieces of a round: a thread has sums of all of them."""
TOKEN_WORDS = 8 * (72 + 8 + 8)
"""The 32-bit words of a warp's activations of a tile."""


def more_tiles(few: Tuning, constants: Constants, params: Params, parts: int) -> Tuning:
    """Return the tuning for more rows of a product whose tuning for few is `few`, of block_rows.cuh.

    A block has as many tiles as fit, up to these limits, and no more than it needs; a multiprocessor has as few blocks
    in turns as possible. parts: 2 if a block has the same rows of the gate's and the up projection's weights.
    """
    warps = few.private["GROUP"] // 32
    steps = few.private["STEPS"]
    sections = few.tile["SPLITS"]
    before_norm = constants.get("ADD") == 1  # whose block then has whole groups of 32 outputs
    three = warps <= WARPS_WITH_THREE and not before_norm
    total_pieces = ceil_div(parts * int(params["outs"]), 16)
    needed_tiles = ceil_div(int(params["rows"]), FEW_ROWS)
    most_tiles = needed_tiles if needed_tiles <= MOST_TILES else TILES_OF_SEVERAL
    for tiles in range(most_tiles, 0, -1):
        even_tiles = ceil_div(needed_tiles, ceil_div(needed_tiles, tiles))
        for turns in range(1, ceil_div(total_pieces, MULTIPROCESSORS) + 1):
            pieces = ceil_div(total_pieces, turns * MULTIPROCESSORS)
            for together in rounds(pieces, even_tiles, three=three) if steps * sections == 1 else [pieces]:
                all_pieces = together * ceil_div(pieces, together)
                tuning = tile(warps, steps, sections, all_pieces, together, even_tiles, parts)
                if tuning:
                    return tuning
    message = f"a product of {params['width']} columns has no tile for {params['rows']} rows"
    raise UnsupportedError(message, backend="cuda", operation="tuning")


def rounds(pieces: int, tiles: int, *, three: bool) -> list[int]:
    """Return the pieces of a round, the best first: what adds the fewest pieces to those of a block, else three for two
    tiles and TOGETHER for more. three: that is possible.
    """
    if not three:
        return [TOGETHER]
    choices = (3, TOGETHER) if tiles <= TILES_OF_SEVERAL else (TOGETHER, 3)
    return sorted(choices, key=lambda each: each * ceil_div(pieces, each))


def tile(warps: int, steps: int, sections: int, pieces: int, together: int, tiles: int, parts: int) -> Tuning | None:
    """Return the tuning with these constants of the kernels, or None if it does not fit a block."""
    pitch = ceil_div(2 * warps * steps * sections, 8) * 8 + 4
    tile_n = 16 * pieces // parts
    activation_words = warps * tiles * TOKEN_WORDS
    sum_words = warps * tiles * 128 * together
    scale_words = 16 * pieces * pitch
    made_words = FEW_ROWS * tiles * (tile_n + 4)
    shared = 4 * (activation_words + sum_words + scale_words + made_words)
    if shared > MOST_SHARED - 1024 or together > MOST_TOGETHER:
        return None
    return tuned(
        32 * warps,
        {"TILE_N": tile_n, "TILE_T": FEW_ROWS * tiles, "SPLITS": 1},
        "block_tiles" if parts > 1 else "tiles",
        PIECES=pieces,
        TOGETHER=together,
        TILES=tiles,
        STEPS=steps,
        SECTIONS=sections,
        SHARED=shared,
    )
