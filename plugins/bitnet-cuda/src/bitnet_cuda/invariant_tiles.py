"""Tunings with which a row gets the same bits in launches of 1 to BATCH_ROWS rows (the option `deterministic`). Only
GPUs of compute capability 9.0 declare more than FEW_ROWS.

Launches of few rows have the tuning of FEW_ROWS rows. Most kernels compute more rows with it too, in further blocks;
for others the functions below choose tunings with the same order of sums.
"""

from __future__ import annotations

from dataclasses import replace

from bitnet_hal.errors import UnsupportedError
from bitnet_hal.plugin import FEW_ROWS, Constants, KernelSpec, Params, Tuning

from bitnet_cuda import decode_tiles, table_tiles
from bitnet_cuda.batch_tiles import WARPGROUP, block_group_tile
from bitnet_cuda.block_tiles import more_tiles
from bitnet_cuda.kernels.portable.tiles import MANY_ROWS, attention_split
from bitnet_cuda.limits import BATCH_ROWS
from bitnet_cuda.tuning import select_tuning as select_own

ROWS = ("rows", "block_rows")
"""The variants of the kernels of block_rows.cuh."""
GROUPS = ("group", "block_group")
"""The variants of the kernels of block_group.cuh."""


def select_tuning(spec: KernelSpec, constants: Constants, params: Params, *, tensor_cores: bool, wgmma: bool) -> Tuning:
    """Return the tuning of a launch of at most BATCH_ROWS rows. wgmma: as in tuning.select_tuning.

    Raises UnsupportedError if other kernels must serve the launch, whatever its number of rows.
    """
    rows = int(params["rows"]) if "rows" in params else 0
    name = spec.name
    most_rows = FEW_ROWS if rows <= FEW_ROWS else BATCH_ROWS
    if name == "attention":
        return attention_split(params, decode_tiles.BLOCKS, most_rows)
    if name == "rope_attention_mixed":
        return decode_tiles.rope_attention_mixed(constants, params, wgmma=wgmma, most_rows=most_rows)

    def tuning_of(rows: int) -> Tuning:
        return select_own(spec, constants, {**params, "rows": rows}, tensor_cores=tensor_cores, wgmma=wgmma)

    if name == "matmul_ternary":
        return tuning_of(max(rows, FEW_ROWS))  # sums over columns are exact integers
    if name == "matmul_ternary_glu" and not constants["BLOCK"]:
        if wgmma:
            tuning_of(BATCH_ROWS)  # raises UnsupportedError if there is none for so many rows
        return tuning_of(max(rows, FEW_ROWS))
    if name == "rms_norm_quantize":
        return tuning_of(min(max(rows, FEW_ROWS), MANY_ROWS))  # with more rows, a row has fewer threads
    if name == "refine_logits":
        return table_tiles.refine(params, wgmma=wgmma)
    if name == "approx_logits":
        return tuning_of(rows)  # which logits are computed again may depend on the tuning, but not the largest ones
    return as_few(name, tuning_of(FEW_ROWS), constants, params)


def as_few(name: str, few: Tuning, constants: Constants, params: Params) -> Tuning:
    """Return the tuning of a launch with the order of sums of `few`, which is that of FEW_ROWS.

    Raises UnsupportedError as `select_tuning`.
    """
    rows = int(params["rows"]) if "rows" in params else 0
    if few.variant in ROWS and rows > FEW_ROWS:
        return more_tiles(few, constants, params, 2 if name == "matmul_ternary_glu" else 1)
    if few.variant not in GROUPS:
        return few
    if not more_tokens(few, BATCH_ROWS, int(params["width"])):
        if name == "matmul_ternary_block":
            return decode_tiles.ternary(params, int(params["outs"]), "few")
        raise UnsupportedError(f"{name} has no tile for {BATCH_ROWS} rows", backend="cuda", operation="tuning")
    return more_tokens(few, rows, int(params["width"])) or few


def more_tokens(few: Tuning, rows: int, width: int) -> Tuning | None:
    """Return the tuning of a kernel of block_group.cuh for `rows` rows with the order of sums of `few`, which is that
    of FEW_ROWS; None if it does not fit a block."""
    row_tiles = few.private["ROW_TILES"]
    shares = few.private["GROUP"] // (WARPGROUP * row_tiles)
    span_t = next(t for t in (8, 16, 32, 64) if rows <= t)
    tuning = block_group_tile(span_t, width, row_tiles, shares, few.tile["SPLITS"])
    return tuning and replace(tuning, variant=few.variant, tile={**few.tile, "TILE_T": span_t})
