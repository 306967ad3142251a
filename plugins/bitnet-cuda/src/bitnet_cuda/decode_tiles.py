"""Tiles of the kernels for few rows, where reading the weights (or the cache) is all that takes time."""

from __future__ import annotations

from bitnet_core.hal import Tuning
from bitnet_core.kernels.catalogue import ceil_div
from bitnet_core.kernels.small_head import HEAD_GROUP

from bitnet_cuda.tensor_tiles import DENSE_ROWS
from bitnet_cuda.tiles import Constants, Params, refused, tuned

FEW_ROWS = 8
"""Rows up to which a step is a decode step: one tensor-core tile of rows."""
BLOCKS = 160
"""Thread blocks that keep a large GPU busy."""
MOST_COLUMNS = 32_768
"""Longest row that a norm joined to its product keeps in the 48 KiB of shared memory, beside scales and sums."""
WORKSPACE = 1 << 20
"""Bytes that blocks which share an output leave their parts in; see kernels/portable/meeting.cuh."""


def choose(name: str, constants: Constants, params: Params, *, tensor_cores: bool) -> Tuning | None:
    """Tile of a launch; None where another kernel serves."""
    rows = int(params.get("rows", 1))
    if name == "argmax_advance":
        return argmax_advance(params)
    if name == "rope_attention":
        mma = tensor_cores and constants["KV"] == 1 and params["head_dim"] in (64, 128)
        return rope_attention(params, mma=mma)
    if name == "matmul_dense" and constants["DTYPE"] == 1 and int(params["width"]) % 8 == 0:
        tiled = tensor_cores and int(params["width"]) % 64 == 0  # by tensor_tiles.py, from DENSE_ROWS on
        if rows < DENSE_ROWS if tiled else rows <= FEW_ROWS:
            return matmul_dense(rows)
    if name in ("pack_head", "draft_logits", "rescore_logits"):
        return small_head(name, rows)
    if tensor_cores and name in ("matmul_ternary", "matmul_ternary_block") and rows <= FEW_ROWS:
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
    if rows > 1:
        raise refused(f"a norm joined to its product serves one row, not {rows}")
    if columns > MOST_COLUMNS:
        raise refused(f"rows of {columns} columns are longer than the {MOST_COLUMNS} that fit shared memory")
    glu = name == "norm_matmul_glu"
    tile = ternary(params, 2 * outs if glu else outs)
    private = {**tile.private, "COLUMNS": columns}
    tile_n = tile.tile["TILE_N"] // 2 if glu else 32
    return Tuning({"TILE_N": tile_n, "TILE_T": 1}, "block" if constants["BLOCK"] else "", private)


def matmul_dense(rows: int) -> Tuning:
    """matmul_dense_few.cu."""
    tile_t = next(tile for tile in (1, 2, 4, 8) if rows <= tile)
    return tuned(128, {"TILE_N": 16, "TILE_T": tile_t}, "few", UNROLL=1)


def small_head(name: str, rows: int) -> Tuning:
    """The exact small head, for as many rows as a decode step may have."""
    if name == "pack_head":
        return tuned(256, {"TILE_N": 8})
    if rows > FEW_ROWS:
        raise refused(f"drafts of {rows} rows cost more than all logits from tensor cores")
    if name == "rescore_logits":
        return tuned(256, {"TILE_N": 1024, "TILE_T": 1})
    tile_t = next(tile for tile in (1, 2, 4, 8) if rows <= tile)
    return tuned(256, {"TILE_N": HEAD_GROUP, "TILE_T": tile_t})


def rope_attention(params: Params, *, mma: bool) -> Tuning:
    """rope_attention.cu, or rope_attention_mma.cu: query heads of a block, and blocks that share a row's positions,
    of which each has SPAN at least."""
    heads, head_dim = int(params["n_heads"]), int(params["head_dim"])
    group = heads // int(params["n_kv_heads"])
    most = 4 if mma else min(8, 1024 // head_dim)
    tile_n = max(n for n in range(1, most + 1) if group % n == 0)
    splits = min(32, max(1, BLOCKS // (int(params["rows"]) * (heads // tile_n))))
    tile = {"TILE_N": tile_n, "TILE_T": 1, "SPLITS": splits}
    if mma:
        return tuned(512, tile, "mma", workspace=WORKSPACE, DIM=head_dim, SPAN=256)
    lanes = 1 << (ceil_div(head_dim, 8) - 1).bit_length()
    return tuned(256, tile, workspace=WORKSPACE, DIM=head_dim, LANES=lanes, UNROLL=4, SPAN=128)


def argmax_advance(params: Params) -> Tuning:
    """argmax_advance.cu: blocks that share a row's logits."""
    split = int(params["rows"]) <= 64 and int(params["vocab"]) >= 1 << 14
    return tuned(512, {"SPLITS": 32 if split else 1}, workspace=WORKSPACE)
