"""Tiles of the kernels of delta nets and rotated weights."""

from __future__ import annotations

from bitnet_hal.plugin import Constants, Params, Tuning

from bitnet_cuda.kernels.portable.delta_tiles import select_tuning as portable
from bitnet_cuda.kernels.portable.tiles import tuned
from bitnet_cuda.tensor_tiles import BATCH_ROWS

MOST_KEYS = 128
"""Elements of a key in gated_delta_rule_chunk.cu: more have no room in shared memory."""


def select_tuning(name: str, constants: Constants, params: Params, *, tensor_cores: bool, wgmma: bool) -> Tuning | None:
    """Tile of a launch; None for other kernels."""
    chunked = name == "gated_delta_rule" and tensor_cores and int(params["rows"]) > BATCH_ROWS
    return (chunk(params, 64 if wgmma else 32) if chunked else None) or portable(name, constants, params)


def chunk(params: Params, rows: int) -> Tuning | None:
    """gated_delta_rule_chunk.cu with chunks of `rows`: of 32 where a block has less shared memory than Hopper's. None
    for heads that are not whole tiles."""
    keys, columns = int(params["key_dim"]), int(params["value_dim"])
    tile_n = next((n for n in (64, 32, 16, 8) if columns % n == 0), 0)
    if keys > MOST_KEYS or keys % 16 or not tile_n:
        return None
    pairs, state = 2 * rows * (keys + 8) + 2 * rows * (rows + 8), (keys + rows) * (tile_n + 4)
    return tuned(4 * rows, {"TILE_N": tile_n}, "chunk", KEY=keys, CHUNK=rows, SHARED=4 * (pairs + state + 4 * rows))
