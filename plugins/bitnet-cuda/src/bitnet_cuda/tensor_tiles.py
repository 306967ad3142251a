"""Tiles of the tensor-core kernels for many rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bitnet_hal.errors import UnsupportedError
from bitnet_hal.kernels.catalogue import KV_BLOCK
from bitnet_hal.plugin import FEW_ROWS, Constants, Params, Tuning
from bitnet_hal.rounding import ceil_div

from bitnet_cuda.kernels.portable.tiles import quantize, tuned

MANY_OUTS = 8192  # weight rows above which even large tiles are enough of them to keep a GPU busy
FULL_GPU = 100  # tiles that keep a large GPU busy
MULTIPROCESSORS = 132  # of a GPU with warpgroup products: H100 and H200
MOST_SHARED = 227 << 10  # bytes of shared memory that a block of such a GPU may have
IN_TURNS = {"TILE_N": 1 << 20, "TILE_T": 1 << 20, "SPLITS": MULTIPROCESSORS}  # blocks that stay take tiles of their own
DENSE_ROWS = 5  # from which f16 heads go to their tiles: 8 rows took 3 % less of a step than with matmul_dense_few.cu
LONG_ROWS = 4096  # columns from which a row's norm, and its product, are shared out otherwise
BATCH_ROWS = 64  # up to which a block keeps its weights in registers; a step of more is taken to hold a prompt
SPREAD = {"SHARED": 113 << 10, "BESIDE": 76 << 10}  # of one, of two a multiprocessor: many gather where there is room
# What rms_norm_quantize has beside its threads: by rows at most, of short and of long ones.
NORMS = {8: ({}, {"LATE": 1}), 32: (SPREAD, {"SHARED": 113 << 10}), 64: (SPREAD, {"SHARED": 76 << 10, "LATE": 1})}


def select_tuning(name: str, constants: Constants, params: Params, *, wgmma: bool) -> Tuning | None:
    """Tile of a launch; None where another kernel serves."""
    rows = int(params.get("rows", 1))
    wide = wgmma and rows > BATCH_ROWS and constants.get("ABLOCK") == 128 and constants.get("BLOCK", 0) > 64
    if name == "matmul_ternary_glu":
        prompt = wgmma and rows > BATCH_ROWS and int(params["outs"]) % 32 == 0 and (wide or not constants["BLOCK"])
        return (WIDE if wide else STREAM)[256, 128] if prompt else glu(rows, constants, params, wgmma=wgmma)
    if name == "rms_norm_quantize" and wgmma and FEW_ROWS / 2 < rows <= BATCH_ROWS:
        apart = NORMS[next(most for most in NORMS if rows <= most)][int(params["stride"]) >= LONG_ROWS]
        return Tuning(private={**quantize(params).private, **apart})
    few = name == "matmul_ternary" and FEW_ROWS < rows <= BATCH_ROWS
    if few and (tile := (_group(constants["ADD"], rows, params) if wgmma else None) or _batch(rows, params)):
        return tile
    if name.startswith("matmul_ternary") and rows > BATCH_ROWS and wgmma and (tile := _stream(name, params, wide=wide)):
        return tile
    if name == "matmul_ternary" and rows > FEW_ROWS:
        many = ceil_div(int(params["outs"]), 128) * ceil_div(rows, 128) >= FULL_GPU  # as measured on an H200 with 2B-4T
        return mma_tile(128, 128, (4, 2), 4) if many else mma_tile(64, 64, (2, 2), 4)
    if name == "matmul_ternary_block" and rows > FEW_ROWS:
        return mma_tile(64, 16 * ceil_div(rows, 16), (4, 1), 4, 4) if rows <= 32 else mma_tile(64, 64, (2, 2), 4, 3)
    if name == "matmul_dense" and rows >= DENSE_ROWS and constants["DTYPE"] == 1 and int(params["width"]) % 64 == 0:
        return dense_tile(int(params["outs"])) if wgmma else _dense(rows, int(params["outs"]))
    if name == "approx_logits" and rows > 1 and wgmma and int(params["width"]) % 16 == 0:
        return approx_tile(rows, int(params["outs"]))
    dims = (64, 128, 256) if wgmma else (64, 128)  # 256 takes more shared memory than others have
    if name == "attention" and rows > BATCH_ROWS and constants["KV"] == 1 and params["head_dim"] in dims:
        return attention_tile(params, wgmma=wgmma)
    return None


def _batch(rows: int, params: Params) -> Tuning | None:
    """matmul_ternary_batch.cu: a warp for each 256 * STEPS columns. None where its warps or sums do not fit a block."""
    units, wide = ceil_div(int(params["width"]), 256), int(params["outs"]) > MANY_OUTS
    warps = ceil_div(units, steps := 2 if units <= 32 else 3)
    tile = {"TILE_N": 32, "TILE_T": 32 if wide and rows > 16 else 16, "SPLITS": 1}
    fits = warps <= 16 and 4 * tile["TILE_N"] * tile["TILE_T"] * warps <= 48 << 10
    return tuned(32 * warps, tile, "batch", STEPS=steps) if fits else None


def group_tile(tile: Constants, shape: tuple[int, int], width: int, ready: int = 0, room: int = 0) -> Tuning | None:
    """Constants of ternary_group.cuh. shape: M_TILES, SHARES; ready: UNPACKED at most. None for what does not fit."""
    span_t, group, splits = tile["TILE_T"], 128 * shape[0] * shape[1], tile["SPLITS"]
    blocks, clusters = ceil_div(width // 128, splits), int(splits == 2)
    private = {"M_TILES": shape[0], "SHARES": shape[1], "SPAN_T": span_t, "BLOCKS": ceil_div(blocks, shape[1])}
    private |= {"UNPACKED": min(ready, private["BLOCKS"]), "CLUSTERS": clusters}
    shared = (max(128 * blocks, 2 * group) + 256 * shape[0] * clusters) * span_t + 1024
    fits = shared <= MOST_SHARED and group * private["BLOCKS"] <= 512 * 16
    return tuned(group, tile, "group", workspace=room, SHARED=shared, **private) if fits else None


def _group(add: int, rows: int, params: Params) -> Tuning | None:
    """The smallest spans with which all blocks are on the GPU at once; room for attention, which comes next (ADD 0)."""
    outs, width, high = int(params["outs"]), int(params["width"]), ceil_div(int(params["outs"]), 64)
    wide, long = outs > MANY_OUTS, width >= LONG_ROWS
    first = not (add or wide or long) and rows > 16
    splits = max(1, min(4 if rows > 32 else 2, MULTIPROCESSORS // high)) if long or (first and rows <= 32) else 1
    ready = 0 if wide or long or (first and splits == 1) else 2 if first or rows > 32 else 5
    most = 0 if wide or long else MULTIPROCESSORS
    span_t = 32 if first else next(t for t in (16, 32, 64) if rows <= t or high * ceil_div(rows, t) <= most)
    tile = {"TILE_N": 64 + 64 * wide, "TILE_T": span_t, "SPLITS": splits}
    odd = (outs | int(params["y_stride"]) | int(params["y_first"])) % 2
    return None if odd else group_tile(tile, (1 + wide, 2 if wide or first else 4), width, ready, 4 << 20)


def block_group_tile(span_t: int, width: int, row_tiles: int, shares: int, splits: int = 1) -> Tuning | None:
    """Constants of block_group.cuh: as many stages as fit, six at most. None where fewer than two do."""
    lines, group = ceil_div(ceil_div(width, 512), splits), 128 * row_tiles * shares
    stage = ceil_div(64 * row_tiles * 128 + 4 * 128 * span_t + 64 * span_t, 1024) * 1024
    beside = 64 * row_tiles * 4 * (4 * lines + 1) + 1024
    stages = min(6, lines, (MOST_SHARED - 1024 - beside) // stage)
    joined = 4 * span_t * group if shares > 1 or splits > 1 else 0
    tile = {"TILE_N": 64 * row_tiles, "TILE_T": span_t, "SPLITS": splits}
    columns = min(span_t, 16 if group > 3 * 128 else 32)  # by the registers of a thread
    shape = {"SPAN_T": span_t, "COLUMNS": columns, "ROW_TILES": row_tiles}
    shape |= {"STAGES": stages, "SHARED": max(stages * stage, joined) + beside}
    return tuned(group, tile, "group", **shape) if stages >= min(2, lines) else None


def block_group(constants: Constants, params: Params, parts: int = 1) -> Tuning | None:
    """Three tiles of 64 weight rows a block where they fill the GPU; else one for four warpgroups, of all columns or,
    where tiles do not fill half of the GPU, of two parts. None where scales are finer, or activations have one a row.

    parts: halves of the weights that a block has the same rows of, which three tiles alone may be.
    """
    if not constants["ABLOCK"] or constants["BLOCK"] < 128:
        return None
    tiles, width = ceil_div(parts * int(params["outs"]), 64), int(params["width"])
    span_t = next(t for t in (8, 16, 32, 64) if params["rows"] <= t)
    if tiles > 2 * MULTIPROCESSORS:
        tuning = block_group_tile(span_t, width, 3, 1)
        return tuning and replace(tuning, tile={**tuning.tile, "TILE_N": 192 // parts})
    splits = 2 if 2 * tiles <= MULTIPROCESSORS and width > 512 else 1
    return block_group_tile(span_t, width, 1, 4, splits) if parts == 1 else None


def glu(rows: int, constants: Constants, params: Params, *, wgmma: bool) -> Tuning:
    """Tiles of matmul_ternary_glu's kernels. UnsupportedError for one row, most prompts, and what does not fit."""
    if constants["BLOCK"] and wgmma and 1 < rows <= BATCH_ROWS and (tuning := block_group(constants, params, 2)):
        return replace(tuning, variant="block_group")
    few = () if constants["BLOCK"] else (8, 16, 32, 64)
    width, span_t = int(params["width"]), next((t for t in few if FEW_ROWS / 2 < rows <= t), 0)
    tile, steps = {"TILE_N": 64, "TILE_T": span_t, "SPLITS": 1}, ceil_div(width, 1280)
    if span_t == FEW_ROWS and steps <= 3:
        return tuned(640, tile, "few", M_TILES=2, SHARES=5, STEPS=steps, SHARED=max(8 * (width + 32), 21120))
    large = wgmma and span_t > FEW_ROWS and not int(params["outs"]) % 2
    if large and (tuning := group_tile(tile, (2, 2 if span_t == 16 else 1), width)):
        return tuning
    raise UnsupportedError(f"no tile for {rows} rows of {width} columns", backend="cuda", operation="tuning")


def mma_tile(tile_n: int, tile_t: int, warps: tuple[int, int], stages: int, resident: int = 0) -> Tuning:
    """Constants of matmul_ternary_mma.cu; with `resident` blocks a multiprocessor, of matmul_ternary_block_mma.cu."""
    shared = stages * (32 * tile_n + (144 if resident else 128) * tile_t)  # there with four scales a token
    tile, shape = {"TILE_N": tile_n, "TILE_T": tile_t, "SPLITS": 1}, {"WARPS_N": warps[0], "WARPS_T": warps[1]}
    return tuned(32 * warps[0] * warps[1], tile, "mma", **shape, STAGES=stages, RESIDENT=resident, SHARED=shared)


def stream_tile(m_tiles: int, stages: int, span_t: int = 128, warpgroups: int = 2, variant: str = "stream") -> Tuning:
    """Constants of row_stream.cuh, or block_wide.cuh ("wide"): warpgroups of 64 * m_tiles weight rows."""
    stage = 2048 * m_tiles * warpgroups + 128 * span_t + 2048 * (variant == "wide")
    shape = {"M_TILES": m_tiles, "SPAN_T": span_t, "STAGES": stages, "SHARED": stages * stage + 16 * span_t + 1024}
    return tuned(128 + 128 * warpgroups, IN_TURNS, variant, **shape)


# Constants of matmul_ternary_block_stream.cu: two warpgroups of 64 tokens each, 128 weight rows.
BLOCK_STREAM = tuned(3 * 128, IN_TURNS, "stream", SPAN_T=128, STAGES=3, SHARED=3 * 52224 + 2 * 24576 + 1024)
STREAM = {(128 * m, t): stream_tile(m, n, t) for m, t, n in ((2, 128, 9), (2, 96, 11), (1, 128, 11), (1, 96, 13))}
WIDE = {(64 * m * g, 128): stream_tile(m, n, 128, g, "wide") for m, g, n in ((1, 2, 8), (1, 3, 7), (2, 2, 6))}


def soonest(tiles: Mapping[tuple[int, int], Tuning], params: Params) -> Tuning:
    """Of tiles, by weight rows and tokens, those soonest done: each takes as if it had 64 rows and 48 tokens more."""
    rows, outs = int(params["rows"]), int(params["outs"])
    turns = {(n, t): ceil_div(ceil_div(outs, n) * ceil_div(rows, t), MULTIPROCESSORS) for n, t in tiles}
    return tiles[min(tiles, key=lambda tile: turns[tile] * (tile[0] + 64) * (tile[1] + 48))]


def _stream(name: str, params: Params, *, wide: bool) -> Tuning | None:
    """None where rows of w and y are not in whole groups."""
    if any(int(params[size]) % group for size, group in (("outs", 32), ("y_stride", 4), ("y_first", 4))):
        return None
    return BLOCK_STREAM if name == "matmul_ternary_block" and not wide else soonest(WIDE if wide else STREAM, params)


def attention_tile(params: Params, *, wgmma: bool) -> Tuning:
    """attention_mma.cu, or attention_wgmma.cu: warpgroups share positions if blocks of twice the rows are too few."""
    heads = next(n for n in (4, 2, 1) if int(params["n_heads"]) // int(params["n_kv_heads"]) % n == 0)
    dim, blocks, tile = int(params["head_dim"]), int(params["n_heads"]) // heads, {"TILE_N": heads, "SPLITS": 1}
    if not wgmma or dim != 128:
        queries = 256 * dim if dim > 128 else 0  # which have no room in registers
        return tuned(128, tile | {"TILE_T": 64 // heads}, "mma", HEAD_DIM=dim, SHARED=8 * KV_BLOCK * dim + queries)
    paired = int(ceil_div(int(params["rows"]), 128 // heads) * blocks < MULTIPROCESSORS)
    private = {"HEAD_DIM": dim, "PAIRED": paired, "STAGES": 6, "SHARED": 6 * 512 * KV_BLOCK + 1024}
    return tuned(384, tile | {"TILE_T": (128 >> paired) // heads}, "wgmma", **private)


def dense_tile(outs: int) -> Tuning:
    """Constants of matmul_dense_stream.cu: pieces of SPAN_N table rows by 64 columns, TILE_N rows a block."""
    tile = {"TILE_N": 256 * ceil_div(outs, 256 * MULTIPROCESSORS), "TILE_T": 64}
    return tuned(3 * 128, tile, "stream", SPAN_N=256, STAGES=4, SHARED=4 * (128 * 256 + 2 * 128 * 64) + 1024)


def approx_tile(rows: int, outs: int) -> Tuning:
    """Constants of approx_logits_stream.cu: BOXES pieces of SPAN_N rows of the head by 128 columns, TILE_N a block."""
    span_t, stages = (8, 6) if rows <= 8 else (16, 5) if rows <= 16 else (32, 4 if rows <= 32 else 2)
    boxes, by_way = (2, 2 * 512 * span_t) if rows > 32 else (1, 0)  # x of two stages
    tile = {"TILE_N": 256 * boxes * min(8, ceil_div(outs, 256 * boxes * MULTIPROCESSORS)), "TILE_T": span_t}
    shared, group = stages * 128 * (256 * boxes + 3 * span_t) + by_way + 1024, 512 if 16 < rows <= 32 else 384
    return tuned(group, tile, "stream", SPAN_N=256, BOXES=boxes, SPAN_T=span_t, STAGES=stages, SHARED=shared)


def _dense(rows: int, outs: int) -> Tuning:
    """Constants of matmul_dense_mma.cu; a block's TILE_N rows of the table come in pieces of SUB_N."""
    tile, warps = {"TILE_N": 512 if outs > 1 << 16 else 128, "TILE_T": 16 if rows <= 16 else 32}, 1 + (rows > 16)
    return tuned(128 * warps, tile, "mma", SUB_N=128, WARPS_N=4, WARPS_T=warps, STAGES=4, SHARED=4 * 4096 * (4 + warps))
