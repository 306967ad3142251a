"""Tiles of the tensor-core kernels for few rows, where reading the weights (or the cache) is all that takes time."""

from __future__ import annotations

from bitnet_hal.errors import UnsupportedError
from bitnet_hal.plugin import FEW_ROWS, Constants, Params, Tuning
from bitnet_hal.rounding import ceil_div
from bitnet_hal.tuning.query import shared_heads

from bitnet_cuda.kernels.portable.tiles import WORKSPACE, tuned
from bitnet_cuda.tensor_tiles import BATCH_ROWS, FULL_GPU, IN_TURNS, MULTIPROCESSORS, block_group

BLOCKS = 160  # thread blocks that keep a large GPU busy
MOST_COLUMNS = 32_768  # of a norm joined to its product, in the 48 KiB of shared memory beside scales and sums
RING = 96 << 10  # bytes of weights on their way to a multiprocessor: with more, kernels in between take longer
RING_WARPS = (24, 20)  # that multiply, at most: with one unit of 256 columns each, and with more


def select_tuning(name: str, constants: Constants, params: Params, *, wgmma: bool) -> Tuning | None:
    """Tile of a launch; None where another kernel serves."""
    dims = (64, 128, 256) if wgmma else (64, 128)  # 256 takes more shared memory than others have
    if name == "rope_attention" and constants["KV"] == 1 and params["head_dim"] in dims:
        return rope_attention(params, wgmma=wgmma)
    if name == "matmul_ternary_block" and params["rows"] == 1 and int(params["width"]) <= MOST_COLUMNS:
        if wgmma and (ring := block_ring(constants, params)):
            return ring
        return block_row("row", int(params["width"]), int(params["outs"]), 16, SPLITS=1)
    few = name == "matmul_ternary_block" and wgmma and params["rows"] <= BATCH_ROWS
    if few and (tile := block_group(constants, params)):
        return tile
    if name in ("matmul_ternary", "matmul_ternary_block") and params["rows"] <= FEW_ROWS:
        return ternary(params, int(params["outs"]), "few", several=name == "matmul_ternary" and params["rows"] > 4)
    return joined(name, constants, params) if name in ("norm_matmul", "norm_matmul_glu") else None


def ternary(params: Params, outs: int, variant: str = "", *, several: bool = False) -> Tuning:
    """A ternary product of `outs` rows: warps share columns, 256 at a time. several: more than four rows of them."""
    units = ceil_div(int(params["width"]), 256)
    wide, long = outs >= 8192, several and 16 < units <= 32
    steps = 1 if long else max(2 if wide or units > 16 else 1, ceil_div(units, 32))
    tile = {"TILE_N": 32 if wide or long else 16, "TILE_T": FEW_ROWS, "SPLITS": 1}
    return tuned(32 * max(4, ceil_div(units, steps)), tile, variant, STEPS=steps, LATE=int(long))


def joined(name: str, constants: Constants, params: Params) -> Tuning:
    """norm_matmul.cu, norm_matmul_few.cu, norm_matmul_glu.cu. UnsupportedError for other rows, and for more columns."""
    rows, columns, outs, width = (int(params[name]) for name in ("rows", "columns", "outs", "width"))
    if name == "norm_matmul" and FEW_ROWS / 2 < rows <= FEW_ROWS and columns <= 4096 and not constants["BLOCK"]:
        n, shared = 64 if outs > 32 * FULL_GPU else 32, 8 * max(width + 32, 1152)
        tile, group = {"TILE_N": n, "TILE_T": FEW_ROWS}, 2 * n * max(4, ceil_div(width, 8 * n))
        return tuned(group, tile, "few", COLUMNS=columns, SHARED=shared, LATE=int(n == 32))
    if rows > 1 or columns > MOST_COLUMNS:
        why = f"a norm joined to its product serves one row of {MOST_COLUMNS} columns, not {rows} of {columns} columns"
        raise UnsupportedError(why, backend="cuda", operation="tuning")
    if constants["BLOCK"]:
        return block_row("block", columns, outs, 8 if name == "norm_matmul_glu" else 16)
    glu = name == "norm_matmul_glu"
    few = ternary(params, 2 * outs if glu else outs)
    n = few.tile["TILE_N"] if glu else 32 if few.private["STEPS"] > 1 and ceil_div(outs, 32) <= FULL_GPU else 48
    return Tuning({"TILE_N": n, "TILE_T": 1}, private={**few.private, "COLUMNS": columns})


def block_row(variant: str, columns: int, outs: int, piece: int, **tile: int) -> Tuning:
    """Constants of block_row.cuh's kernels: twice `piece` outputs at a time, and two blocks for each multiprocessor."""
    steps = ceil_div(columns, 16 * 256)
    tile |= {"TILE_N": 2 * piece * min(3, ceil_div(outs, 4 * MULTIPROCESSORS * piece)), "TILE_T": 1}
    return tuned(32 * max(4, ceil_div(columns, 256 * steps)), tile, variant, COLUMNS=columns, STEPS=steps)


def block_ring(constants: Constants, params: Params) -> Tuning | None:
    """Constants of matmul_ternary_block_ring.cu: a block on each multiprocessor, and what it can have under way. None
    for scales of less than 128 columns and rows that are not in whole groups."""
    columns, outs, block = int(params["width"]), int(params["outs"]), constants["BLOCK"]
    if constants["ABLOCK"] not in (0, 128) or block % 128 or columns % 512 or outs % 8:
        return None
    units = columns // 256
    steps = 1 if units <= RING_WARPS[0] else ceil_div(units, RING_WARPS[1])
    stage = 8 * (columns // 4 + 4 * ceil_div(columns, block))  # bytes of eight rows, and of their scales
    stages = max(2, min(ceil_div(outs, 8 * MULTIPROCESSORS), RING // stage))
    private = {"COLUMNS": columns, "STEPS": steps, "STAGES": stages, "CHUNKS": columns // 512}
    return tuned(32 * (ceil_div(units, steps) + 1), IN_TURNS, "ring", **private, SHARED=stages * stage + 1024)


def rope_attention(params: Params, *, wgmma: bool) -> Tuning:
    """rope_attention_mma.cu: heads of a block, blocks that share a row's positions, 16 a warp each or twice that."""
    tile_n, dim, rows = shared_heads(params, 4), int(params["head_dim"]), int(params["rows"])
    blocks = rows * (int(params["n_heads"]) // tile_n)
    if dim > 128:  # a block has a multiprocessor to itself, and a warp 16 of its elements
        tile = {"TILE_N": tile_n, "TILE_T": 1, "SPLITS": min(32, max(1, MULTIPROCESSORS // blocks))}
        shape = {"DIM": dim, "SHARED": 512 * dim, "RESIDENT": 1, "BUFFERS": 1, "TILES": 1}
        return tuned(512, tile, "mma", workspace=WORKSPACE, **shape)
    splits = min(32, max(1, BLOCKS // blocks))
    many = (256, 2, 2, 1) if blocks <= 2 * MULTIPROCESSORS else (256, 1, 3, 1)
    group, buffers, resident, tiles = (512, 1, 1, 1 + (wgmma and rows > 1)) if splits > 1 else many
    tile, shared = {"TILE_N": tile_n, "TILE_T": 1, "SPLITS": splits}, buffers * tiles * group * dim
    shape = {"DIM": dim, "SHARED": shared, "RESIDENT": resident, "BUFFERS": buffers, "TILES": tiles}
    return tuned(group, tile, "mma", workspace=WORKSPACE, **shape)
