"""Tiles of the tensor-core kernels for many rows."""

from __future__ import annotations

from collections.abc import Mapping

from bitnet_core.kernels.catalogue import KV_BLOCK

DENSE_ROWS = 9
"""Rows from which the tensor cores multiply with an f16 table."""
PROMPT_ROWS = 65
"""Rows from which a step is taken to hold a prompt: more than the sequences that decode at a time."""


def mma_tile(tile_n: int, tile_t: int, warps: tuple[int, int, int], stages: int) -> dict[str, int]:
    """Constants of matmul_ternary_mma.cu: warps along weight rows, tokens and planes; column blocks under way."""
    warps_n, warps_t, warps_k = warps
    stage = 32 * tile_n + 128 * tile_t
    sums = 4 * tile_n * tile_t if warps_k > 1 else 0
    return {
        "MMA": 1,
        "GROUP": 32 * warps_n * warps_t * warps_k,
        "TILE_N": tile_n,
        "TILE_T": tile_t,
        "WARPS_N": warps_n,
        "WARPS_T": warps_t,
        "WARPS_K": warps_k,
        "STAGES": stages,
        "SHARED": max(stages * stage, sums),
    }


def matmul(rows: int) -> dict[str, int]:
    """Tiles by the number of rows, as plugins/bitnet-cuda/benchmarks/matmul.py found them on an H200."""
    if rows <= 16:
        return mma_tile(32, 16, (2, 1, 4), 6)
    if rows <= 32:
        return mma_tile(32, 32, (2, 1, 4), 6)
    if rows <= 64:
        return mma_tile(64, 64, (2, 2, 2), 4)
    return mma_tile(128, 128, (2, 2, 1), 4)


def attention_tile(head_dim: int, heads: int, rows: int) -> dict[str, int]:
    """Constants of attention_mma.cu: query heads of one key/value head, and rows, of a thread block."""
    return {
        "MMA": 1,
        "GROUP": 32 * heads * (rows // 16),
        "TILE_N": heads,
        "TILE_T": rows,
        "HEAD_DIM": head_dim,
        "SHARED": 2 * 2 * KV_BLOCK * head_dim * 2,
    }


def attention(params: Mapping[str, int | float]) -> dict[str, int] | None:
    """Tile of a prompt's attention over an f16 cache; None where the plain kernel serves."""
    rows, head_dim = int(params["rows"]), int(params["head_dim"])
    if rows < PROMPT_ROWS or head_dim not in (64, 128):
        return None
    group = int(params["n_heads"]) // int(params["n_kv_heads"])
    heads = next(heads for heads in (4, 2, 1) if group % heads == 0)
    return attention_tile(head_dim, heads, 64 // heads)


def dense_tile(tile_n: int, tile_t: int, warps_t: int, stages: int) -> dict[str, int]:
    """Constants of matmul_dense_mma.cu; a block's TILE_N rows of the table come in pieces of SUB_N."""
    sub_n, warps_n = 128, 4
    return {
        "MMA": 1,
        "GROUP": 32 * warps_n * warps_t,
        "TILE_N": tile_n,
        "SUB_N": sub_n,
        "TILE_T": tile_t,
        "WARPS_N": warps_n,
        "WARPS_T": warps_t,
        "STAGES": stages,
        "SHARED": stages * (128 * sub_n + 256 * tile_t),
    }


def dense(params: Mapping[str, int | float]) -> dict[str, int] | None:
    """Tile of a product with an f16 table for more rows than decoding has; None where the plain kernel serves."""
    rows, width = int(params["rows"]), int(params["width"])
    if rows < DENSE_ROWS or width % 64:
        return None
    tile_n = 512 if int(params["outs"]) >= 1 << 16 else 128
    return dense_tile(tile_n, 16, 1, 4) if rows <= 16 else dense_tile(tile_n, 32, 2, 4)
