"""Tunings of the tensor-core products of tables: the f16 head, and its int8 copy for approximate logits."""

from __future__ import annotations

from bitnet_hal.errors import UnsupportedError
from bitnet_hal.plugin import Constants, Params, Tuning
from bitnet_hal.rounding import ceil_div

from bitnet_cuda.kernels.portable.tiles import F16, refine_logits, tuned
from bitnet_cuda.limits import COPY_ALIGNMENT, MULTIPROCESSORS

DENSE_ROWS = 5
"""The number of rows from which products of f16 tables use tensor cores.

For eight rows these took 3 % less of a step than matmul_dense_few.cu.
"""


def dense(constants: Constants, params: Params, *, wgmma: bool) -> Tuning | None:
    """Return the tuning of a product of an f16 table, or None for few rows, other types and odd widths."""
    rows = int(params["rows"])
    outs = int(params["outs"])
    if rows < DENSE_ROWS or constants["DTYPE"] != F16 or int(params["width"]) % 64:
        return None
    return dense_tile(outs) if wgmma else dense_mma_tile(rows, outs)


def dense_tile(outs: int) -> Tuning:
    """Return the tuning of matmul_dense_stream.cu. A stage has SPAN_N table rows by 64 columns, a block TILE_N rows."""
    span_n = 256
    tile_t = 64
    stages = 4
    table_bytes = 2 * 64 * span_n
    row_bytes = 2 * 2 * 64 * tile_t  # x as two f16
    return tuned(
        3 * 128,
        {"TILE_N": span_n * ceil_div(outs, span_n * MULTIPROCESSORS), "TILE_T": tile_t},
        "stream",
        SPAN_N=span_n,
        STAGES=stages,
        SHARED=stages * (table_bytes + row_bytes) + COPY_ALIGNMENT,
    )


def dense_mma_tile(rows: int, outs: int) -> Tuning:
    """Return the tuning of matmul_dense_mma.cu. A block has TILE_N table rows, SUB_N of them in a stage."""
    warps_n = 4
    warps_t = 1 if rows <= 16 else 2
    stages = 4
    return tuned(
        32 * warps_n * warps_t,
        {"TILE_N": 512 if outs > 1 << 16 else 128, "TILE_T": 16 * warps_t},
        "mma",
        SUB_N=128,
        WARPS_N=warps_n,
        WARPS_T=warps_t,
        STAGES=stages,
        SHARED=stages * 4096 * (warps_n + warps_t),
    )


def refine(params: Params, *, wgmma: bool) -> Tuning:
    """Return the tuning of refine_logits_mma.cu, whose logits have the bits of matmul_dense_stream.cu.

    Raises UnsupportedError for widths and GPUs that this kernel of matmul_dense does not serve.
    """
    width = int(params["width"])
    if not wgmma or width % 64:
        message = f"no kernel refines logits of {width} columns with the bits of matmul_dense"
        raise UnsupportedError(message, backend="cuda", operation="tuning")
    few = refine_logits(params)
    return tuned(few.private["GROUP"], few.tile, "mma", SHARED=width)  # 16 f32 for 64 columns


def approx(params: Params) -> Tuning | None:
    """Return the tuning of approx_logits_stream.cu, or None for one row and for columns that are not in whole words."""
    rows = int(params["rows"])
    if rows == 1 or int(params["width"]) % 16:
        return None
    return approx_tile(rows, int(params["outs"]))


def approx_tile(rows: int, outs: int) -> Tuning:
    """Return the tuning of approx_logits_stream.cu.

    A stage has BOXES * SPAN_N rows of the head by 128 columns, a block TILE_N rows.
    """
    span_n = 256
    boxes = 1
    group = 384
    if rows <= 8:
        span_t = 8
        stages = 6
    elif rows <= 16:
        span_t = 16
        stages = 5
    elif rows <= 32:
        span_t = 32
        stages = 4
        group = 512
    else:
        span_t = 32
        stages = 2
        boxes = 2
    stage_rows = span_n * boxes
    x_bytes = 2 * 128 * 4 * span_t if boxes > 1 else 0  # f32 of two stages: registers have no room for them
    stage_bytes = 128 * (stage_rows + 3 * span_t)  # codes, and x as three planes of bytes
    return tuned(
        group,
        {"TILE_N": stage_rows * min(8, ceil_div(outs, stage_rows * MULTIPROCESSORS)), "TILE_T": span_t},
        "stream",
        SPAN_N=span_n,
        BOXES=boxes,
        SPAN_T=span_t,
        STAGES=stages,
        SHARED=stages * stage_bytes + x_bytes + COPY_ALIGNMENT,
    )
