"""Block sizes and tiles: which source a launch takes, and its constants."""

from __future__ import annotations

from collections.abc import Mapping

from bitnet_core.hal import Tuning
from bitnet_core.kernels.spec import KernelSpec

from bitnet_cuda import decode_tiles, tensor_tiles
from bitnet_cuda.tiles import tuned

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
) -> Tuning:
    """Tuning of one launch; wgmma: the GPU has warpgroup products (compute capability 9.0)."""
    name, rows = spec.name, int(params.get("rows", 1))
    if tile := decode_tiles.choose(name, constants, params, tensor_cores=tensor_cores):
        return tile
    if tensor_cores and (tile := tensor_tiles.choose(name, constants, params, wgmma=wgmma)):
        return tile
    if name in ("matmul_ternary", "matmul_ternary_block", "matmul_dense"):
        if rows > decode_tiles.FEW_ROWS and name != "matmul_dense":
            return tuned(256, {"TILE_N": 64, "TILE_T": 64, "SPLITS": 1}, "tile")
        tile_t = next(tile for tile in (1, 2, 4, 8) if rows <= tile or tile == 8)
        splits = {} if name == "matmul_dense" else {"SPLITS": 1}
        return tuned(128, {"TILE_N": 8, "TILE_T": tile_t, **splits})
    if name == "attention":
        group = int(params["n_heads"]) // int(params["n_kv_heads"])
        heads = next(heads for heads in (4, 3, 2, 1) if group % heads == 0)
        return tuned(128, {"TILE_N": heads, "TILE_T": 1, "SPLITS": 1})
    if name.endswith("norm_quantize"):
        return quantize_group(int(params["stride"]), rows)
    if name.startswith("embed_rows"):
        return tuned(128, {"TILE_N": 1024})
    if name == "rope_store_kv":
        if constants["KV"] == 1 and not constants["INTERLEAVED"] and int(params["head_dim"]) % 4 == 0:
            return tuned(32 * ROTATED_HEADS, {"TILE_N": ROTATED_HEADS}, "heads")
        return tuned(64, {"TILE_N": 1})
    return tuned(1024, {"SPLITS": 1}) if name == "top_k" else tuned(512)


def quantize_group(stride: int, rows: int) -> Tuning:
    """Threads of a row of `stride` columns, and how many fours of columns each keeps in registers: half as many threads
    where there are rows enough to fill the GPU twice."""
    fours = stride // 4
    vectors = -(-fours // (MOST_QUANTIZING if rows <= MANY_ROWS else MOST_QUANTIZING // 2))
    return tuned(-(-fours // (32 * vectors)) * 32, VECTORS=vectors)
