"""Block sizes and tiles."""

from __future__ import annotations

from collections.abc import Mapping

from bitnet_core.kernels.spec import KernelSpec

from bitnet_cuda import decode_tiles, tensor_tiles

MOST_QUANTIZING = 640
"""Threads that share a row's norm and quantization, at most."""
MANY_ROWS = 256
"""Rows above which blocks of half that size all fit on a large GPU at once."""

ROTATED_HEADS = 8
"""Heads that a block of rope_store_kv_heads.cu rotates."""


def choose(
    spec: KernelSpec,
    constants: Mapping[str, int],
    params: Mapping[str, int | float],
    *,
    tensor_cores: bool,
    wgmma: bool = False,
) -> dict[str, int]:
    """Tuning constants of one launch; wgmma: the GPU has warpgroup products (compute capability 9.0)."""
    rows = int(params["rows"])
    if tile := decode_tiles.choose(spec.name, constants, params, tensor_cores=tensor_cores):
        return tile
    if tensor_cores and (tile := tensor_tiles.choose(spec.name, constants, params, wgmma=wgmma)):
        return tile
    if spec.name in ("matmul_ternary", "matmul_ternary_block", "matmul_dense"):
        tile_t = next(tile for tile in (1, 2, 4, 8) if rows <= tile or tile == 8)
        return {"GROUP": 128, "TILE_N": 8, "TILE_T": tile_t}
    if spec.name == "attention":
        return {"GROUP": 128, "TILE_N": 1, "TILE_T": 1}
    if spec.name.endswith("norm_quantize"):
        return quantize_group(int(params["stride"]), rows)
    if spec.name == "embed_rows":
        return {"GROUP": 128, "TILE_N": 1024}
    if spec.name == "rope_store_kv":
        if constants["KV"] == 1 and not constants["INTERLEAVED"] and int(params["head_dim"]) % 4 == 0:
            return {"GROUP": 32 * ROTATED_HEADS, "HEADS": ROTATED_HEADS}
        return {"GROUP": 64}
    return {"GROUP": 1024 if spec.name == "top_k" else 512}


def quantize_group(stride: int, rows: int) -> dict[str, int]:
    """Threads of a row of `stride` columns, and how many fours of columns each keeps in registers: half as many threads
    where there are rows enough to fill the GPU twice."""
    fours = stride // 4
    vectors = -(-fours // (MOST_QUANTIZING if rows <= MANY_ROWS else MOST_QUANTIZING // 2))
    return {"GROUP": -(-fours // (32 * vectors)) * 32, "VECTORS": vectors}
