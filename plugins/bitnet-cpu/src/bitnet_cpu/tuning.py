"""Tile sizes of launches: threads take workgroups, of one tile each, one by one."""

from __future__ import annotations

from collections.abc import Mapping

from bitnet_hal.plugin import KernelSpec, Tuning
from bitnet_hal.rounding import ceil_div

PACKED_ROWS = 8
"""The maximum rows for which a ternary matrix is multiplied from its packed blocks, without panels (as in C++)."""
DECODE_BLOCK = 256
"""The columns of a block that embed_rows decodes at once."""
EXPERT_ROWS = 32
"""The matrix rows of an expert per workgroup."""
CHANNELS = 512
"""The channels of a convolution per workgroup."""
TRIED_ROWS = (16, 32, 64, 128)
"""The matrix rows per workgroup among which `bitnet tune` chooses."""
HEAD_ROWS = {"pack_head": 256, "approx_logits": 256, "refine_logits": 4096}
"""The rows of the head per workgroup; refine_logits reads all bounds first, so its workgroups are larger."""


def select_tuning(spec: KernelSpec, params: Mapping[str, int | float], panel_rows: int, threads: int) -> Tuning:
    """Return the tuning of a launch. panel_rows: the matrix rows that the code path unpacks together."""
    rows = int(params.get("rows", 1))
    tile = dict.fromkeys(spec.tuning, 1)
    if spec.name in ("embed_rows", "embed_rows_ternary"):
        tile["TILE_N"] = ceil_div(int(params["hidden"]), DECODE_BLOCK) * DECODE_BLOCK
    elif spec.name in ("matmul_ternary", "matmul_ternary_block"):
        tile |= {"TILE_N": 32 if rows <= PACKED_ROWS else panel_rows, "TILE_T": rows}
    elif spec.name == "matmul_dense":
        tile |= {"TILE_N": 32, "TILE_T": rows}
    elif spec.name == "causal_conv1d":
        tile["TILE_N"] = CHANNELS
    elif spec.name == "gated_delta_rule":
        tile["TILE_N"] = int(params["value_dim"])
    elif spec.name in HEAD_ROWS:
        tile["TILE_N"] = HEAD_ROWS[spec.name]
    elif spec.name == "matmul_experts":
        tile["TILE_N"] = EXPERT_ROWS
    elif spec.name in ("attention", "window_attention"):
        tile |= _attention(params, rows, threads)
    return Tuning(tile)


def candidate_tunings(spec: KernelSpec, params: Mapping[str, int | float], usual: Tuning) -> list[Tuning]:
    """Return `usual`, and for products of few rows others with more or fewer matrix rows per workgroup."""
    if spec.name not in ("matmul_ternary", "matmul_ternary_block", "matmul_dense") or int(params["rows"]) > PACKED_ROWS:
        return [usual]
    sizes = [size for size in TRIED_ROWS if size != usual.tile["TILE_N"]]
    return [usual, *(Tuning({**usual.tile, "TILE_N": size}) for size in sizes)]


def _attention(params: Mapping[str, int | float], rows: int, threads: int) -> dict[str, int]:
    """Return the tile of attention: all query heads of one key/value head, and 32 rows of a prompt.

    These share decoded blocks. In decode steps a workgroup has fewer heads if half of the threads would be idle
    otherwise.
    """
    heads = int(params["n_heads"])
    tile_t = 32 if rows > PACKED_ROWS else 1
    tile_n = heads // int(params["n_kv_heads"])
    while tile_t == 1 and tile_n > 1 and 2 * rows * ceil_div(heads, tile_n) <= threads:
        tile_n //= 2
    return {"TILE_N": tile_n, "TILE_T": tile_t}
