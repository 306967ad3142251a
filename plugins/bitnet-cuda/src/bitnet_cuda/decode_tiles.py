"""Tiles of the tensor-core kernels for few rows, where reading the weights (or the cache) is all that takes time."""

from __future__ import annotations

from bitnet_core.errors import UnsupportedError
from bitnet_core.hal import Tuning
from bitnet_core.hal.portable_tiles import FEW_ROWS, WORKSPACE, Constants, Params, shared_heads, tuned
from bitnet_core.kernels.catalogue import ceil_div

MULTIPROCESSORS = 132
"""Of a GPU with as many as there are: H100 and H200."""
BLOCKS = 160
"""Thread blocks that keep a large GPU busy."""
MOST_COLUMNS = 32_768
"""Longest row that a norm joined to its product keeps in the 48 KiB of shared memory, beside scales and sums."""


def choose(name: str, constants: Constants, params: Params) -> Tuning | None:
    """Tile of a launch; None where another kernel serves."""
    if name == "rope_attention" and constants["KV"] == 1 and params["head_dim"] in (64, 128):
        return rope_attention(params)
    if name == "matmul_ternary_block" and params["rows"] == 1 and int(params["width"]) <= MOST_COLUMNS:
        return block_row("row", int(params["width"]), int(params["outs"]), 16)
    if name in ("matmul_ternary", "matmul_ternary_block") and params["rows"] <= FEW_ROWS:
        return ternary(params, int(params["outs"]), "few")
    if name in ("norm_matmul", "norm_matmul_glu"):
        return joined(name, constants, params)
    return None


def ternary(params: Params, outs: int, variant: str = "") -> Tuning:
    """A ternary product of `outs` rows: warps share the columns, 256 at a time, STEPS times each."""
    units = ceil_div(int(params["width"]), 256)
    wide = outs >= 8192
    steps = max(2 if wide or units > 16 else 1, ceil_div(units, 32))
    tile = {"TILE_N": 32 if wide else 16, "TILE_T": FEW_ROWS, "SPLITS": 1}
    return tuned(32 * max(4, ceil_div(units, steps)), tile, variant, STEPS=steps)


def joined(name: str, constants: Constants, params: Params) -> Tuning:
    """norm_matmul.cu, or norm_matmul_glu.cu with TILE_N rows of each half. UnsupportedError for several rows, which
    separate launches do better, and for more columns than there is shared memory for."""
    rows, columns, outs = (int(params[name]) for name in ("rows", "columns", "outs"))
    if rows > 1 or columns > MOST_COLUMNS:
        why = f"a norm joined to its product serves one row of {MOST_COLUMNS} columns, not {rows} of {columns} columns"
        raise UnsupportedError(why, backend="cuda", operation="tuning")
    glu = name == "norm_matmul_glu"
    if constants["BLOCK"]:
        return block_row("block", columns, outs, 8 if glu else 16)
    tile = ternary(params, 2 * outs if glu else outs)
    private = {**tile.private, "COLUMNS": columns}
    tile_n = tile.tile["TILE_N"] // 2 if glu else 32
    return Tuning({"TILE_N": tile_n, "TILE_T": 1}, "", private)


def block_row(variant: str, columns: int, outs: int, piece: int) -> Tuning:
    """Constants of block_row.cuh: `piece` outputs at a time, a few times, for a block; two blocks a multiprocessor, if
    its warps have 256 columns each."""
    units, depth = ceil_div(columns, 256), 2
    steps = ceil_div(units, 16)
    tile_n = piece * depth * min(3, ceil_div(outs, 2 * MULTIPROCESSORS * piece * depth))
    resident = 2 if steps == 1 and outs > tile_n * MULTIPROCESSORS else 1
    private = {"COLUMNS": columns, "STEPS": steps, "DEPTH": depth if steps == 1 else 1, "RESIDENT": resident}
    tile = {"TILE_N": tile_n, "TILE_T": 1} | ({"SPLITS": 1} if variant == "row" else {})
    return tuned(32 * max(4, ceil_div(units, steps)), tile, variant, **private)


def rope_attention(params: Params) -> Tuning:
    """rope_attention_mma.cu: heads of a block, and blocks that share a row's positions, 16 a warp each at least."""
    tile_n = shared_heads(params, 4)
    splits = min(32, max(1, BLOCKS // (int(params["rows"]) * (int(params["n_heads"]) // tile_n))))
    tile = {"TILE_N": tile_n, "TILE_T": 1, "SPLITS": splits}
    dim = int(params["head_dim"])
    return tuned(512, tile, "mma", workspace=WORKSPACE, DIM=dim, SHARED=512 * dim)
