"""Tiles of the tensor-core kernels for many rows."""

from __future__ import annotations


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
