"""Tile sizes: how a launch is cut into workgroups that threads take one by one."""

from __future__ import annotations

from collections.abc import Mapping

from bitnet_core.kernels.catalogue import ceil_div
from bitnet_core.kernels.spec import KernelSpec

DIRECT_ROWS = 8
"""Rows up to which a ternary matrix is multiplied from its packed blocks, without unpacking panels (as in C++)."""
DECODE_BLOCK = 256
"""embed_rows decodes whole blocks of this many columns."""


def tile_sizes(spec: KernelSpec, params: Mapping[str, int | float], panel_rows: int, threads: int) -> dict[str, int]:
    """TILE_N and TILE_T of a launch. panel_rows: matrix rows that the code path unpacks together."""
    rows = int(params["rows"])
    if spec.name == "embed_rows":
        return {"TILE_N": ceil_div(int(params["hidden"]), DECODE_BLOCK) * DECODE_BLOCK}
    if spec.name == "matmul_ternary":
        return {"TILE_N": 32 if rows <= DIRECT_ROWS else panel_rows, "TILE_T": rows}
    if spec.name in ("matmul_ternary_block", "matmul_dense"):
        return {"TILE_N": 32, "TILE_T": rows}
    if spec.name == "attention":
        # The query heads of one key/value head; prompts share decoded blocks between 32 rows. Decoding: fewer heads
        # where half of the threads would have none.
        heads, tile_t = int(params["n_heads"]), 32 if rows > DIRECT_ROWS else 1
        tile_n = heads // int(params["n_kv_heads"])
        while tile_t == 1 and tile_n > 1 and 2 * rows * ceil_div(heads, tile_n) <= threads:
            tile_n //= 2
        return {"TILE_N": tile_n, "TILE_T": tile_t}
    return {}
