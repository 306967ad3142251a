"""Tiles of the tensor-core kernels for many rows."""

from __future__ import annotations

from bitnet_core.hal import Tuning
from bitnet_core.hal.portable_tiles import Constants, Params, tuned
from bitnet_core.kernels.catalogue import KV_BLOCK, ceil_div

MANY_OUTS = 8192
"""Weight rows above which even large tiles are enough of them to keep a GPU busy."""
FULL_GPU = 100
"""Tiles that keep a large GPU busy."""
MULTIPROCESSORS = 132
"""Of a GPU with warpgroup products: H100 and H200."""
IN_TURNS = {"TILE_N": 1 << 20, "TILE_T": 1 << 20, "SPLITS": MULTIPROCESSORS}  # blocks that stay take tiles of their own
MOST_SHARED = 227 << 10
"""Bytes of shared memory that a block of such a GPU may have."""
MMA_ROWS = 9
"""Rows from which ternary products go to the tensor cores' tiles."""
DENSE_ROWS = 5
"""The same for f16 heads: 8 rows took 3 % less of a whole step than with matmul_dense_few.cu."""
BATCH_ROWS = 64
"""Rows up to which a block keeps its weights in registers; a step of more is taken to hold a prompt."""


def choose(name: str, constants: Constants, params: Params, *, wgmma: bool) -> Tuning | None:
    """Tile of a launch; None where another kernel serves."""
    rows = int(params.get("rows", 1))
    few = name == "matmul_ternary" and MMA_ROWS <= rows <= BATCH_ROWS
    if few and (tile := (_group(rows, params) if wgmma else None) or _batch(rows, params)):
        return tile
    if name.startswith("matmul_ternary") and rows > BATCH_ROWS and wgmma and (tile := _stream(name, params)):
        return tile
    if name == "matmul_ternary" and rows >= MMA_ROWS:
        many = ceil_div(int(params["outs"]), 128) * ceil_div(rows, 128) >= FULL_GPU  # as measured on an H200 with 2B-4T
        return mma_tile(128, 128, (4, 2), 4) if many else mma_tile(64, 64, (2, 2), 4)
    if name == "matmul_ternary_block" and rows >= MMA_ROWS:
        return mma_tile(64, 16 * ceil_div(rows, 16), (4, 1), 4, 4) if rows <= 32 else mma_tile(64, 64, (2, 2), 4, 3)
    if name == "matmul_dense" and rows >= DENSE_ROWS and constants["DTYPE"] == 1 and int(params["width"]) % 64 == 0:
        return dense_tile(int(params["outs"])) if wgmma else _dense(rows, int(params["outs"]))
    if name == "draft_logits" and rows > 1 and wgmma and int(params["width"]) % 16 == 0:
        return drafts_tile(rows, int(params["outs"]))
    if name == "attention" and rows > BATCH_ROWS and constants["KV"] == 1 and params["head_dim"] in (64, 128):
        group = int(params["n_heads"]) // int(params["n_kv_heads"])
        heads = next(heads for heads in (4, 2, 1) if group % heads == 0)
        wgmma = wgmma and params["head_dim"] == 128
        return attention_tile(int(params["head_dim"]), heads, 64 // heads, wgmma=wgmma)
    return None


def _batch(rows: int, params: Params) -> Tuning | None:
    """matmul_ternary_batch.cu: a warp for every 256 * STEPS columns. None where a block would have too many warps, or
    sums that do not fit in 48 KiB of shared memory."""
    units, wide = ceil_div(int(params["width"]), 256), int(params["outs"]) > MANY_OUTS
    steps = 2 if units <= 32 else 3
    warps = ceil_div(units, steps)
    tile = {"TILE_N": 32, "TILE_T": 32 if wide and rows > 16 else 16, "SPLITS": 1}
    fits = warps <= 16 and 4 * tile["TILE_N"] * tile["TILE_T"] * warps <= 48 << 10
    return tuned(32 * warps, tile, "batch", STEPS=steps) if fits else None


def group_tile(m_tiles: int, span_t: int, warpgroups: int, width: int) -> Tuning:
    """Constants of matmul_ternary_group.cu: 64 * m_tiles weight rows, span_t tokens; warpgroups share the columns."""
    blocks = width // 128
    shared = max(blocks * 128 * span_t, 256 * warpgroups * m_tiles * span_t) + 1024
    tile = {"TILE_N": 64 * m_tiles, "TILE_T": span_t, "SPLITS": 1}
    private = {"M_TILES": m_tiles, "SPAN_T": span_t, "BLOCKS": ceil_div(blocks, warpgroups), "SHARED": shared}
    return tuned(128 * warpgroups, tile, "group", **private)


def _group(rows: int, params: Params) -> Tuning | None:
    """The smallest spans of tokens with which all blocks are on the GPU at once; None for what does not fit a block."""
    if any(int(params[size]) % 4 for size in ("outs", "y_stride", "y_first")):
        return None
    outs, width = int(params["outs"]), int(params["width"])
    wide, high = outs > MANY_OUTS, ceil_div(outs, 64)
    spans = [t for t in (16, 32) if rows <= t or (not wide and high * ceil_div(rows, t) <= MULTIPROCESSORS)]
    tile = group_tile(2 if wide else 1, (*spans, 64)[0], 2 if wide else 4, width)
    fits = tile.private["SHARED"] <= MOST_SHARED and tile.private["BLOCKS"] <= 16
    return tile if fits else None


def mma_tile(tile_n: int, tile_t: int, warps: tuple[int, int], stages: int, resident: int = 0) -> Tuning:
    """Constants of matmul_ternary_mma.cu; with `resident` blocks a multiprocessor, of matmul_ternary_block_mma.cu."""
    shared = stages * (32 * tile_n + (144 if resident else 128) * tile_t)  # there with four scales a token
    tile, shape = {"TILE_N": tile_n, "TILE_T": tile_t, "SPLITS": 1}, {"WARPS_N": warps[0], "WARPS_T": warps[1]}
    return tuned(32 * warps[0] * warps[1], tile, "mma", **shape, STAGES=stages, RESIDENT=resident, SHARED=shared)


def stream_tile(m_tiles: int, span_t: int, stages: int) -> Tuning:
    """Constants of matmul_ternary_stream.cu: two warpgroups of 64 * m_tiles weight rows each, span_t tokens."""
    shared = stages * (4096 * m_tiles + 136 * span_t) + 1024
    return tuned(3 * 128, IN_TURNS, "stream", M_TILES=m_tiles, SPAN_T=span_t, STAGES=stages, SHARED=shared)


BLOCK_STREAM = tuned(3 * 128, IN_TURNS, "stream", SPAN_T=128, STAGES=3, SHARED=3 * 52224 + 2 * 24576 + 1024)
"""Constants of matmul_ternary_block_stream.cu: two warpgroups of 64 tokens each, 128 weight rows."""


def _stream(name: str, params: Params) -> Tuning | None:
    """The larger tiles where a large GPU has them done as soon; None where rows of w and y are not in whole groups."""
    if any(int(params[size]) % group for size, group in (("outs", 32), ("y_stride", 4), ("y_first", 4))):
        return None
    if name == "matmul_ternary_block":
        return BLOCK_STREAM
    across = ceil_div(int(params["rows"]), 128)
    small, large = (ceil_div(ceil_div(int(params["outs"]), n) * across, MULTIPROCESSORS) for n in (128, 256))
    return stream_tile(2 if 2 * large <= small else 1, 128, 8)


def attention_tile(head_dim: int, heads: int, rows: int, *, wgmma: bool = False) -> Tuning:
    """Constants of attention_mma.cu, or attention_wgmma.cu: query heads of one key/value head, and rows, of a block."""
    tile, blocks = {"TILE_N": heads, "TILE_T": rows, "SPLITS": 1}, 3 if wgmma else 2
    shared = blocks * 2 * KV_BLOCK * head_dim * 2 + 1024 * wgmma
    return tuned(2 * heads * rows, tile, "wgmma" if wgmma else "mma", HEAD_DIM=head_dim, SHARED=shared)


def dense_tile(outs: int, stages: int = 4) -> Tuning:
    """Constants of matmul_dense_stream.cu: pieces of SPAN_N table rows by 64 columns, TILE_N rows a block."""
    span_n = 256
    tile = {"TILE_N": span_n * ceil_div(outs, span_n * MULTIPROCESSORS), "TILE_T": 64}
    shared = stages * (128 * span_n + 2 * 128 * 64) + 1024
    return tuned(3 * 128, tile, "stream", SPAN_N=span_n, STAGES=stages, SHARED=shared)


def drafts_tile(rows: int, outs: int) -> Tuning:
    """Constants of draft_logits_stream.cu: pieces of SPAN_N rows of the head by 128 columns, TILE_N rows a block."""
    span_n, (span_t, stages) = 256, (16, 5) if rows <= 16 else (32, 4)
    tile = {"TILE_N": span_n * min(8, ceil_div(outs, span_n * MULTIPROCESSORS)), "TILE_T": span_t}
    shared = stages * (128 * span_n + 3 * 128 * span_t) + 1024
    return tuned(3 * 128, tile, "stream", SPAN_N=span_n, SPAN_T=span_t, STAGES=stages, SHARED=shared)


def _dense(rows: int, outs: int) -> Tuning:
    """Constants of matmul_dense_mma.cu; a block's TILE_N rows of the table come in pieces of SUB_N."""
    tile = {"TILE_N": 512 if outs > 1 << 16 else 128, "TILE_T": 16 if rows <= 16 else 32}
    shape = {"SUB_N": 128, "WARPS_N": 4, "WARPS_T": tile["TILE_T"] // 16, "STAGES": 4}
    shared = shape["STAGES"] * (128 * shape["SUB_N"] + 256 * tile["TILE_T"])
    return tuned(128 * shape["WARPS_T"], tile, "mma", **shape, SHARED=shared)
