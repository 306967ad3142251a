"""Tiles of the kernels for few rows, where reading the weights (or the cache) is all that takes time."""

from __future__ import annotations

from collections.abc import Mapping

from bitnet_core.errors import UnsupportedError
from bitnet_core.kernels.catalogue import ceil_div

from bitnet_cuda.tensor_tiles import DENSE_ROWS

FEW_ROWS = 8
"""Rows up to which a step is a decode step: one tensor-core tile of rows."""
BLOCKS = 160
"""Thread blocks that keep a large GPU busy."""
MOST_COLUMNS = 40_960
"""Longest row that a norm joined to its product keeps in the 48 KiB of shared memory, beside the block's sums."""
WORKSPACE = 1 << 20
"""Bytes that blocks which share an output leave their parts in; see kernels/meeting.cuh."""

Params = Mapping[str, int | float]


def choose(name: str, constants: Mapping[str, int], params: Params, *, tensor_cores: bool) -> dict[str, int] | None:
    """Tile of a launch; None where another kernel serves."""
    rows = int(params["rows"])
    if name == "argmax_advance":
        return argmax_advance(params)
    if name == "rope_attention":
        mma = tensor_cores and constants["KV"] == 1 and params["head_dim"] in (64, 128)
        return rope_attention(params, mma=mma)
    if name == "matmul_dense" and constants["DTYPE"] == 1 and int(params["width"]) % 8 == 0:
        tiled = tensor_cores and int(params["width"]) % 64 == 0  # by tensor_tiles.py, from DENSE_ROWS on
        if rows < DENSE_ROWS if tiled else rows <= FEW_ROWS:
            return matmul_dense(rows)
    if tensor_cores and name == "matmul_ternary" and rows <= FEW_ROWS:
        return matmul_ternary(params)
    if tensor_cores and name == "norm_matmul":
        return norm_matmul(params)
    if tensor_cores and name == "norm_matmul_glu":
        return norm_matmul_glu(params)
    return None


def ternary(params: Params, outs: int) -> dict[str, int]:
    """A ternary product of `outs` rows: warps share the columns, 256 at a time, STEPS times each."""
    units = ceil_div(int(params["width"]), 256)
    wide = outs >= 8192
    steps = max(2 if wide or units > 16 else 1, ceil_div(units, 32))
    return {"GROUP": 32 * max(4, ceil_div(units, steps)), "TILE_N": 32 if wide else 16, "STEPS": steps}


def matmul_ternary(params: Params) -> dict[str, int]:
    """matmul_ternary_few.cu."""
    return {"FEW": 1, "TILE_T": 8, **ternary(params, int(params["outs"]))}


def norm_matmul(params: Params) -> dict[str, int]:
    """norm_matmul.cu."""
    return {"TILE_T": 1, "COLUMNS": columns(params), **ternary(params, int(params["outs"])), "TILE_N": 32}


def norm_matmul_glu(params: Params) -> dict[str, int]:
    """norm_matmul_glu.cu: TILE_N rows of each half."""
    tile = ternary(params, 2 * int(params["outs"]))
    return {"TILE_T": 1, "COLUMNS": columns(params), **tile, "TILE_N": tile["TILE_N"] // 2}


def columns(params: Params) -> int:
    """Columns of a row that a block keeps quantized. UnsupportedError for more than it has shared memory for."""
    count = int(params["columns"])
    if count > MOST_COLUMNS:
        raise UnsupportedError(
            f"rows of {count} columns are longer than the {MOST_COLUMNS} that fit shared memory",
            backend="cuda",
            operation="tuning",
        )
    return count


def matmul_dense(rows: int) -> dict[str, int]:
    """matmul_dense_few.cu."""
    tile_t = next(tile for tile in (1, 2, 4, 8) if rows <= tile)
    return {"FEW": 1, "GROUP": 128, "TILE_N": 16, "TILE_T": tile_t, "UNROLL": 1}


def rope_attention(params: Params, *, mma: bool) -> dict[str, int]:
    """rope_attention.cu, or rope_attention_mma.cu: query heads of a block, and blocks that share a row's positions,
    of which each has SPAN at least."""
    heads, head_dim = int(params["n_heads"]), int(params["head_dim"])
    group = heads // int(params["n_kv_heads"])
    most = 4 if mma else min(8, 1024 // head_dim)
    tile = max(n for n in range(1, most + 1) if group % n == 0)
    common = {"TILE_N": tile, "TILE_T": 1, "DIM": head_dim}
    common["SPLITS"] = min(32, max(1, BLOCKS // (int(params["rows"]) * (heads // tile))))
    if mma:
        return {"MMA": 1, "GROUP": 512, "SPAN": 256, **common}
    lanes = 1 << (ceil_div(head_dim, 8) - 1).bit_length()
    return {"GROUP": 256, "LANES": lanes, "UNROLL": 4, "SPAN": 128, **common}


def argmax_advance(params: Params) -> dict[str, int]:
    """argmax_advance.cu: blocks that share a row's logits."""
    split = int(params["rows"]) <= 64 and int(params["vocab"]) >= 1 << 14
    return {"GROUP": 512, "SPLITS": 32 if split else 1}
