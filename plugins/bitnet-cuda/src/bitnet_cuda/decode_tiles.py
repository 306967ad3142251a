"""Tunings of the tensor-core kernels for few rows, whose time is that of reading weights or the KV cache."""

from __future__ import annotations

from bitnet_hal.errors import UnsupportedError
from bitnet_hal.plugin import FEW_ROWS, Constants, Params, Tuning
from bitnet_hal.rounding import ceil_div
from bitnet_hal.tuning.query import shared_heads

from bitnet_cuda.batch_tiles import block_group, block_rows
from bitnet_cuda.kernels.portable.tiles import F16, MEETINGS, MOST_MEETING_HEADS, MOST_SPLITS, WORKSPACE, tuned
from bitnet_cuda.limits import BATCH_ROWS, FULL_GPU, MULTIPROCESSORS, PERSISTENT, attention_dims

BLOCKS = 160
"""The number of thread blocks that keeps a large GPU busy."""
MOST_COLUMNS = 32_768
"""The maximum width of a fused norm: its codes, scales and sums fit 48 KiB of shared memory."""
MOST_FUSED_COLUMNS = 4096
"""The maximum width of a norm of five to eight rows that is fused with its product."""
UNIT = 256
"""The columns that a warp multiplies in one step."""
WIDE_OUTS = 8192
"""The number of outputs from which one row has larger tiles and more columns per warp."""
RING_BYTES = 96 << 10
"""The maximum bytes of weights in flight to a multiprocessor. With more, the kernels in between take longer."""
RING_WARPS_ONE_STEP = 24
"""The maximum number of warps that multiply in matmul_ternary_block_ring.cu if each has one unit of columns."""
RING_WARPS = 20
"""The maximum number of these warps if each has several units."""
RING_ROWS = 8
"""The weight rows of a bulk copy in matmul_ternary_block_ring.cu."""


def select_tuning(name: str, constants: Constants, params: Params, *, wgmma: bool) -> Tuning | None:
    """Return the tuning of a launch, or None if this module does not serve it.

    Raises UnsupportedError for a fused kernel whose parts must be launched separately.
    """
    if name == "rope_attention_mixed":
        return rope_attention_mixed(constants, params, wgmma=wgmma)
    if name == "rope_attention":
        if constants["KV"] == F16 and params["head_dim"] in attention_dims(wgmma=wgmma):
            return rope_attention(params, wgmma=wgmma)
        return None
    if name == "matmul_ternary":
        rows = int(params["rows"])
        if rows > FEW_ROWS:
            return None
        return ternary(params, int(params["outs"]), "few", several=rows > FEW_ROWS // 2)
    if name == "matmul_ternary_block":
        return ternary_block(constants, params, wgmma=wgmma)
    if name in ("norm_matmul", "norm_matmul_glu"):
        return fused_norm(name, constants, params)
    return None


def ternary_block(constants: Constants, params: Params, *, wgmma: bool) -> Tuning | None:
    """Return the tuning of a ternary product with block scales, or None for many rows."""
    rows = int(params["rows"])
    width = int(params["width"])
    outs = int(params["outs"])
    if rows == 1 and width <= MOST_COLUMNS:
        ring = block_ring(constants, params) if wgmma else None
        return ring or block_row("row", width, outs, 16, SPLITS=1)
    if wgmma and rows <= FEW_ROWS and (few := block_rows(constants, params)):
        return few
    if wgmma and rows <= BATCH_ROWS:
        group = block_group(constants, params)
        if group:
            return group
    return ternary(params, outs, "few") if rows <= FEW_ROWS else None


def ternary(params: Params, outs: int, variant: str = "", *, several: bool = False) -> Tuning:
    """Return the tuning of a ternary product with `outs` outputs, of which warps share the columns.

    several: there are more than four rows. STEPS: the units of columns of a warp. LATE: the next kernel
    may start once the kernels before this one have ended, not earlier.
    """
    units = ceil_div(int(params["width"]), UNIT)
    wide = outs >= WIDE_OUTS
    long = several and 16 < units <= 32
    steps = 1
    if not long:
        fewest_steps = 2 if wide or units > 16 else 1
        steps = max(fewest_steps, ceil_div(units, 32))
    warps = max(4, ceil_div(units, steps))
    tile = {"TILE_N": 32 if wide or long else 16, "TILE_T": FEW_ROWS, "SPLITS": 1}
    return tuned(32 * warps, tile, variant, STEPS=steps, LATE=int(long))


def fused_norm(name: str, constants: Constants, params: Params) -> Tuning:
    """Return the tuning of norm_matmul or norm_matmul_glu.

    Raises UnsupportedError for more rows or columns than the kernels support.
    """
    rows = int(params["rows"])
    columns = int(params["columns"])
    several = FEW_ROWS // 2 < rows <= FEW_ROWS
    if name == "norm_matmul" and several and columns <= MOST_FUSED_COLUMNS and not constants["BLOCK"]:
        return norm_few(params)
    if rows > 1 or columns > MOST_COLUMNS:
        message = (
            f"{name} supports one row of up to {MOST_COLUMNS} columns, not {rows} of {columns} columns; "
            "launch the norm and the product separately"
        )
        raise UnsupportedError(message, backend="cuda", operation="tuning")
    outs = int(params["outs"])
    is_glu = name == "norm_matmul_glu"
    if constants["BLOCK"]:
        return block_row("block", columns, outs, 8 if is_glu else 16)
    product = ternary(params, 2 * outs if is_glu else outs)
    if is_glu:
        tile_n = product.tile["TILE_N"]
    elif product.private["STEPS"] > 1 and ceil_div(outs, 32) <= FULL_GPU:
        tile_n = 32
    else:
        tile_n = 48
    return Tuning({"TILE_N": tile_n, "TILE_T": 1}, private={**product.private, "COLUMNS": columns})


def norm_few(params: Params) -> Tuning:
    """Return the tuning of norm_matmul_few.cu, for five to eight rows."""
    return norm_few_tile(params, 64 if int(params["outs"]) > 32 * FULL_GPU else 32)


def norm_few_tile(params: Params, tile_n: int) -> Tuning:
    """Return the tuning of norm_matmul_few.cu with `tile_n` outputs in a block.

    SHARED holds the codes of all rows, and later the sums of the warps that share an output.
    """
    width = int(params["width"])
    shares = max(4, ceil_div(width, 8 * tile_n))
    tile = {"TILE_N": tile_n, "TILE_T": FEW_ROWS}
    shared = FEW_ROWS * max(width + 32, 1152)
    late = int(tile_n == 32)
    return tuned(2 * tile_n * shares, tile, "few", COLUMNS=int(params["columns"]), SHARED=shared, LATE=late)


def block_row(variant: str, columns: int, outs: int, piece: int, **tile: int) -> Tuning:
    """Return the tuning of the kernels of block_row.cuh, with two blocks on each multiprocessor.

    piece: the outputs of a tensor-core product. TILE_N is one to three pairs of pieces.
    """
    steps = ceil_div(columns, 16 * UNIT)
    warps = max(4, ceil_div(columns, UNIT * steps))
    pairs = min(3, ceil_div(outs, 4 * MULTIPROCESSORS * piece))
    block_tile = {**tile, "TILE_N": 2 * piece * pairs, "TILE_T": 1}
    return tuned(32 * warps, block_tile, variant, COLUMNS=columns, STEPS=steps)


def block_ring(constants: Constants, params: Params) -> Tuning | None:
    """Return the tuning of matmul_ternary_block_ring.cu: one block per multiprocessor, with STAGES copies in flight.

    None if scales have fewer than 128 columns, or rows and columns are not in whole copies.
    """
    columns = int(params["width"])
    outs = int(params["outs"])
    block = constants["BLOCK"]
    coarse_scales = constants["ABLOCK"] in (0, 128) and block % 128 == 0
    if not coarse_scales or columns % 512 or outs % RING_ROWS:
        return None
    units = columns // UNIT
    steps = 1 if units <= RING_WARPS_ONE_STEP else ceil_div(units, RING_WARPS)
    code_bytes = RING_ROWS * (columns // 4)
    scale_bytes = RING_ROWS * 4 * ceil_div(columns, block)
    stage_bytes = code_bytes + scale_bytes
    copies = ceil_div(outs, RING_ROWS * MULTIPROCESSORS)
    stages = max(2, min(copies, RING_BYTES // stage_bytes))
    warps = ceil_div(units, steps)
    copying_warps = 1
    return tuned(
        32 * (warps + copying_warps),
        PERSISTENT,
        "ring",
        COLUMNS=columns,
        STEPS=steps,
        STAGES=stages,
        CHUNKS=columns // 512,
        SHARED=stages * stage_bytes + 1024,
    )


def rope_attention(params: Params, *, wgmma: bool) -> Tuning:
    """Return the tuning of rope_attention_mma.cu.

    TILE_N: the query heads of a block. SPLITS: the blocks that share the positions of a row. TILES: the tiles of 16
    positions of a warp in one round.
    """
    head_dim = int(params["head_dim"])
    rows = int(params["rows"])
    tile_n = shared_heads(params, 4)
    blocks = rows * (int(params["n_heads"]) // tile_n)
    if head_dim > 128:
        return rope_attention_wide(head_dim, tile_n, blocks)
    splits = min(MOST_SPLITS, max(1, BLOCKS // blocks))
    tiles = 1
    if splits > 1:
        group = 512
        buffers = 1
        resident = 1
        if wgmma and rows > 1:
            tiles = 2
    else:
        group = 256
        two_resident = blocks <= 2 * MULTIPROCESSORS
        buffers = 2 if two_resident else 1
        resident = 2 if two_resident else 3
    return tuned(
        group,
        {"TILE_N": tile_n, "TILE_T": 1, "SPLITS": splits},
        "mma",
        workspace=WORKSPACE,
        DIM=head_dim,
        SHARED=buffers * tiles * group * head_dim,
        RESIDENT=resident,
        BUFFERS=buffers,
        TILES=tiles,
        FRESH=1,
        SHARE=group // 2,
    )


def rope_attention_wide(head_dim: int, tile_n: int, blocks: int) -> Tuning:
    """Return the tuning of rope_attention_mma.cu for heads of 256 elements.

    A block has a multiprocessor to itself, and each of its 16 warps makes 16 elements of the output. blocks: without
    splits.
    """
    group = 512
    return tuned(
        group,
        {"TILE_N": tile_n, "TILE_T": 1, "SPLITS": min(MOST_SPLITS, max(1, MULTIPROCESSORS // blocks))},
        "mma",
        workspace=WORKSPACE,
        DIM=head_dim,
        SHARED=group * head_dim,
        RESIDENT=1,
        BUFFERS=1,
        TILES=1,
        FRESH=1,
        SHARE=group // 2,
    )


def rope_attention_mixed(constants: Constants, params: Params, *, wgmma: bool, most_rows: int = FEW_ROWS) -> Tuning:
    """Return the tuning of rope_attention_mixed_mma.cu, the same for 1 to `most_rows` rows, and with the same order of
    sums for other `most_rows`.

    SHARES: the most shares of a row's positions, at least SHARE positions in each: with one row they fill the GPU.
    SPLITS: the blocks that take the shares of all rows in turns, as many as fit the GPU. LIKE: a block has this many
    times fewer warps than with few rows, each with as many more tiles.
    Raises UnsupportedError for more rows, other caches and other heads.
    """
    rows = int(params["rows"])
    heads = int(params["n_heads"])
    head_dim = int(params["head_dim"])
    if rows > most_rows or constants["KV"] != F16 or head_dim not in attention_dims(wgmma=wgmma):
        message = (
            f"rope_attention_mixed supports {most_rows} rows of an f16 cache, not {rows} rows of heads of {head_dim} "
            "elements; launch the rotation and attention separately"
        )
        raise UnsupportedError(message, backend="cuda", operation="tuning")
    tile_n = shared_heads(params, 4)
    turns = max(1, MULTIPROCESSORS // (heads // tile_n))
    shares = min(MOST_SPLITS, turns) if heads <= MOST_MEETING_HEADS else 1
    part_bytes = 4 * most_rows * heads * shares * (head_dim + 4)
    fresh_bytes = 4 * most_rows * head_dim if most_rows > FEW_ROWS else 0  # fewer are in static shared memory
    group, tiles, resident = 512, 1, 1
    if most_rows > FEW_ROWS and head_dim <= 128:  # two blocks on a multiprocessor
        group, tiles, resident = 256, 2, 2
    return tuned(
        group,
        {"TILE_N": tile_n, "TILE_T": most_rows, "SPLITS": resident * turns},
        "mma",
        workspace=4 * MEETINGS + part_bytes,
        SHARES=shares,
        DIM=head_dim,
        SHARED=tiles * group * head_dim + fresh_bytes,
        RESIDENT=resident,
        BUFFERS=1,
        TILES=tiles,
        LIKE=tiles,
        FRESH=most_rows,
        SHARE=group // 2 * tiles,
    )
