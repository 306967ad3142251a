"""Tile sizes: how a launch is cut into workgroups that threads take one by one."""

from __future__ import annotations

from collections.abc import Mapping

from bitnet_hal.plugin import KernelSpec, Tuning
from bitnet_hal.rounding import ceil_div

PACKED_ROWS = 8
"""Rows up to which a ternary matrix is multiplied from its packed blocks, without unpacking panels (as in C++)."""
DECODE_BLOCK = 256
"""embed_rows decodes whole blocks of this many columns."""
CHANNELS = 512
"""Of a convolution for a workgroup."""
TRIED_ROWS = (16, 32, 64, 128)
"""Rows of a matrix for a workgroup among which `bitnet tune` may choose."""
HEAD_ROWS = {"pack_head": 256, "approx_logits": 256, "refine_logits": 4096}
"""Rows of the head for a workgroup; rescoring looks at all bounds first, so its share is larger."""


def select_tuning(spec: KernelSpec, params: Mapping[str, int | float], panel_rows: int, threads: int) -> Tuning:
    """TILE_N and TILE_T of a launch. panel_rows: matrix rows that the code path unpacks together."""
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
    elif spec.name == "attention":
        tile |= _attention(params, rows, threads)
    return Tuning(tile)


def candidate_tunings(spec: KernelSpec, params: Mapping[str, int | float], usual: Tuning) -> list[Tuning]:
    """`usual`, and for products of few rows others that cut the matrix into larger or smaller shares."""
    if spec.name not in ("matmul_ternary", "matmul_ternary_block", "matmul_dense") or int(params["rows"]) > PACKED_ROWS:
        return [usual]
    sizes = [size for size in TRIED_ROWS if size != usual.tile["TILE_N"]]
    return [usual, *(Tuning({**usual.tile, "TILE_N": size}) for size in sizes)]


def _attention(params: Mapping[str, int | float], rows: int, threads: int) -> dict[str, int]:
    """The query heads of one key/value head; prompts share decoded blocks between 32 rows. Decoding: fewer heads where
    half of the threads would have none."""
    heads, tile_t = int(params["n_heads"]), 32 if rows > PACKED_ROWS else 1
    tile_n = heads // int(params["n_kv_heads"])
    while tile_t == 1 and tile_n > 1 and 2 * rows * ceil_div(heads, tile_n) <= threads:
        tile_n //= 2
    return {"TILE_N": tile_n, "TILE_T": tile_t}
