"""Tunings of the ternary products of batches: up to 64 rows, one for each sequence that decodes."""

from __future__ import annotations

from dataclasses import replace

from bitnet_hal.errors import UnsupportedError
from bitnet_hal.plugin import FEW_ROWS, Constants, Params, Tuning
from bitnet_hal.rounding import ceil_div

from bitnet_cuda.kernels.portable.tiles import tuned
from bitnet_cuda.limits import BATCH_ROWS, LONG_ROWS, MANY_OUTS, MOST_SHARED, MULTIPROCESSORS

WARPGROUP = 128
"""The threads of a warpgroup."""
MOST_STATIC_SHARED = 48 << 10
"""The maximum bytes of shared memory of a block that asks for no dynamic shared memory."""
GROUP_WORKSPACE = 4 << 20
"""The bytes in which blocks of matmul_ternary_group.cu that share outputs exchange sums."""
MOST_ROW_WARPS = 24
"""The maximum number of warps of block_rows.cuh that have all columns, 256 each."""
MOST_SHARING_WARPS = 24
"""The same if two blocks share the columns. Such warps have one piece of weight rows in flight, and 12 have four."""
ATTENTION_BLOCKS = 8
"""The blocks of attention of a row: the usual number of key/value heads."""
MOST_BEFORE_ATTENTION = 3
"""The pieces of a block, before it leaves room for attention, up to which it may take more of them."""
MOST_STEPPING_WARPS = 16
"""The maximum number of warps that have all columns if they take them in steps."""
MOST_STEP_PIECES = 4
"""The pieces of 16 weight rows of a block whose warps take several steps: a thread has sums of all pieces."""
FEW_PIECES = 3
"""The pieces of a block up to which two blocks share the columns of more than MOST_STEPPING_WARPS warps."""
MOST_PIECES = 12
"""The pieces of 16 weight rows of a block of block_rows.cuh if each multiprocessor has several blocks in turns."""
LINE = 512
"""The columns of a bulk copy in block_group.cuh: four column blocks of 128."""


def batch(params: Params) -> Tuning | None:
    """Return the tuning of matmul_ternary_batch.cu, or None if its warps or sums do not fit a block.

    A warp has 256 * STEPS columns.
    """
    rows = int(params["rows"])
    units = ceil_div(int(params["width"]), 256)
    steps = 2 if units <= 32 else 3
    warps = ceil_div(units, steps)
    tile_n = 32
    tile_t = 32 if int(params["outs"]) > MANY_OUTS and rows > 16 else 16
    sum_bytes = 4 * tile_n * tile_t * warps
    if warps > 16 or sum_bytes > MOST_STATIC_SHARED:
        return None
    return tuned(32 * warps, {"TILE_N": tile_n, "TILE_T": tile_t, "SPLITS": 1}, "batch", STEPS=steps)


def group_tile(
    tile: Constants, m_tiles: int, shares: int, width: int, *, unpacked: int = 0, workspace: int = 0
) -> Tuning | None:
    """Return the tuning of the kernels of ternary_group.cuh, or None if it does not fit a block.

    m_tiles: the tiles of 64 weight rows of a block. shares: the warpgroups that share the columns. unpacked: the
    maximum number of column blocks to unpack before the activations arrive.
    """
    span_t = tile["TILE_T"]
    splits = tile["SPLITS"]
    group = WARPGROUP * m_tiles * shares
    column_blocks = ceil_div(width // 128, splits)
    blocks = ceil_div(column_blocks, shares)
    clusters = int(splits == 2)
    activation_bytes = 128 * column_blocks  # of one token
    sum_bytes = 4 * 64 * m_tiles * shares  # of one token, in the place of the activations
    cluster_bytes = 4 * 64 * m_tiles * clusters  # sums of the other block of the cluster
    shared = (max(activation_bytes, sum_bytes) + cluster_bytes) * span_t + 1024
    codes_fit_registers = group * blocks <= 512 * 16
    if shared > MOST_SHARED or not codes_fit_registers:
        return None
    return tuned(
        group,
        tile,
        "group",
        workspace=workspace,
        SHARED=shared,
        M_TILES=m_tiles,
        SHARES=shares,
        SPAN_T=span_t,
        BLOCKS=blocks,
        UNPACKED=min(unpacked, blocks),
        CLUSTERS=clusters,
    )


def group(add: int, params: Params) -> Tuning | None:
    """Return the tuning of matmul_ternary_group.cu, or None if weight rows are not in pairs or do not fit a block.

    Takes the smallest TILE_T with which all blocks are on the GPU at once. A product that adds to no output (add 0)
    comes before attention, and leaves room for its blocks.
    """
    rows = int(params["rows"])
    outs = int(params["outs"])
    width = int(params["width"])
    if (outs | int(params["y_stride"]) | int(params["y_first"])) % 2:
        return None
    large = outs > MANY_OUTS or width >= LONG_ROWS
    before_attention = not add and not large and rows > 16
    m_tiles = 2 if outs > MANY_OUTS else 1
    shares = 2 if outs > MANY_OUTS or before_attention else 4
    splits = _group_splits(rows, outs, width, before_attention=before_attention)
    if large or (before_attention and splits == 1):
        unpacked = 0
    elif before_attention or rows > 32:
        unpacked = 2
    else:
        unpacked = 5
    if before_attention:
        span_t = 32
    elif large:
        span_t = next(t for t in (16, 32, 64) if rows <= t)
    else:
        tiles = ceil_div(outs, 64)
        span_t = next(t for t in (16, 32, 64) if rows <= t or tiles * ceil_div(rows, t) <= MULTIPROCESSORS)
    tile = {"TILE_N": 64 * m_tiles, "TILE_T": span_t, "SPLITS": splits}
    return group_tile(tile, m_tiles, shares, width, unpacked=unpacked, workspace=GROUP_WORKSPACE)


def _group_splits(rows: int, outs: int, width: int, *, before_attention: bool) -> int:
    """Return the number of blocks that share the columns of an output of matmul_ternary_group.cu."""
    if width >= LONG_ROWS or (before_attention and rows <= 32):
        most_splits = 4 if rows > 32 else 2
        return max(1, min(most_splits, MULTIPROCESSORS // ceil_div(outs, 64)))
    return 1


def block_group_tile(
    span_t: int, width: int, row_tiles: int, shares: int, splits: int = 1, *, one_scale: bool = False
) -> Tuning | None:
    """Return the tuning of the kernels of block_group.cuh, or None if fewer than two stages fit shared memory.

    Takes as many stages as fit, six at most. Arguments: the constants of the kernels in lower case. one_scale: 128
    columns have one activation scale, so that a thread has a quarter of the sums, and multiplies all tokens at once.
    """
    lines = ceil_div(ceil_div(width, LINE), splits)
    group = WARPGROUP * row_tiles * shares
    span_n = 64 * row_tiles
    code_bytes = 128 * span_n
    activation_bytes = LINE * span_t
    scale_bytes = 64 * span_t
    stage_bytes = ceil_div(code_bytes + activation_bytes + scale_bytes, 1024) * 1024
    weight_scale_bytes = 4 * span_n * (4 * lines + 1)
    beside_bytes = weight_scale_bytes + 1024
    stages = min(6, lines, (MOST_SHARED - 1024 - beside_bytes) // stage_bytes)
    if stages < min(2, lines):
        return None
    sum_bytes = 4 * span_t * group if shares > 1 or splits > 1 else 0  # in the place of the stages
    most_columns = 16 if group > 3 * WARPGROUP else 32  # as many as the registers of a thread have room for
    columns = span_t if one_scale else min(span_t, most_columns)
    return tuned(
        group,
        {"TILE_N": span_n, "TILE_T": span_t, "SPLITS": splits},
        "group",
        SPAN_T=span_t,
        COLUMNS=columns,
        ROW_TILES=row_tiles,
        STAGES=stages,
        SHARED=max(stages * stage_bytes, sum_bytes) + beside_bytes,
    )


def block_rows_tile(pieces: int, warps: int, splits: int, steps: int = 1) -> Tuning | None:
    """Return the tuning of the kernels of block_rows.cuh, or None if it does not fit a block.

    pieces: the pieces of 16 weight rows of a block. splits: the blocks that share the columns, 256 for each warp in
    each of its steps.
    """
    group = 32 * warps
    pitch = ceil_div(2 * warps * steps, 8) * 8 + 4
    sums = 128 * pieces
    room = max(sums, steps * 8 * (72 + 8 + 8))  # words of a warp: its sums take the place of its activations
    shared = 4 * (warps * room + 16 * pieces * pitch + (sums if splits > 1 else 0))
    if shared > MOST_SHARED - 1024:
        return None
    depth = 4 if group <= 384 else 3 if group <= 512 else 1
    if steps > 1 and pieces <= 2 and group <= 512:
        depth = 6  # activations of one step at a time leave registers for weights
    tile = {"TILE_N": 16 * pieces, "TILE_T": FEW_ROWS, "SPLITS": splits}
    return tuned(
        group,
        tile,
        "rows",
        PIECES=pieces,
        DEPTH=min(depth, pieces * steps),
        STEPS=steps,
        ROOM=room,
        SHARED=shared,
    )


def block_rows(constants: Constants, params: Params, parts: int = 1) -> Tuning | None:
    """Return the tuning of a product of block_rows.cuh, or None if its scales or sizes are not supported.

    The order of an output's sum is the same for a row alone and among FEW_ROWS. A multiprocessor has one block. A
    product that adds to no output (ADD 0) comes before attention, and leaves multiprocessors to its blocks, which then
    load keys and values while it runs. parts: as in block_group, whose blocks share no columns.
    """
    if not constants["ABLOCK"] or constants["BLOCK"] < 128:
        return None
    units = ceil_div(int(params["width"]), 256)
    total_pieces = ceil_div(parts * int(params["outs"]), 16)
    pieces = ceil_div(total_pieces, MULTIPROCESSORS)
    shared = parts == 1 and units > MOST_STEPPING_WARPS and pieces <= FEW_PIECES
    if units > MOST_ROW_WARPS or shared:
        return _block_rows_of_long_rows(total_pieces, units) if parts == 1 else None
    if pieces <= MOST_BEFORE_ATTENTION and parts == 1 and constants.get("ADD") == 0:
        rows = FEW_ROWS if params["rows"] > FEW_ROWS // 2 else FEW_ROWS // 2
        pieces = ceil_div(total_pieces, MULTIPROCESSORS - ATTENTION_BLOCKS * rows)
    if pieces > 2 * MOST_PIECES:  # blocks in turns
        if units > MOST_STEPPING_WARPS:
            return None
        pieces = ceil_div(pieces, ceil_div(pieces, MOST_PIECES))
    tuning = block_rows_tile(pieces, max(2, units), 1)
    if tuning is None or parts == 1:
        return tuning
    return replace(tuning, variant="block_rows", tile={**tuning.tile, "TILE_N": 8 * pieces})


def _block_rows_of_long_rows(total_pieces: int, units: int) -> Tuning | None:
    """Return the tuning of a product whose warps take their columns in steps, or two blocks share; None if it has many
    outputs or columns.

    total_pieces: the pieces of 16 weight rows. units: the columns in units of 256.
    """
    if units > 2 * MOST_SHARING_WARPS:
        return None
    pieces = ceil_div(total_pieces, MULTIPROCESSORS)
    if units > MOST_ROW_WARPS and pieces <= MOST_STEP_PIECES:
        steps = ceil_div(units, MOST_STEPPING_WARPS)
        return block_rows_tile(pieces, ceil_div(units, steps), 1, steps)
    pieces = ceil_div(2 * total_pieces, MULTIPROCESSORS)
    return block_rows_tile(pieces, ceil_div(units, 2), 2) if pieces <= 2 * MOST_PIECES else None


def block_group(constants: Constants, params: Params, parts: int = 1) -> Tuning | None:
    """Return the tuning of a product of block_group.cuh, or None if its scales or sizes are not supported.

    A block has three tiles of 64 weight rows if these blocks fill the GPU. Otherwise it has one tile for four
    warpgroups, with half of the columns if the tiles fill less than half of the GPU. Weight scales need 128 columns or
    more, and activations several scales per row.

    parts: 2 if a block has the same rows of the gate's and the up projection's weights; needs three tiles.
    """
    if not constants["ABLOCK"] or constants["BLOCK"] < 128:
        return None
    width = int(params["width"])
    tiles = ceil_div(parts * int(params["outs"]), 64)
    span_t = next(t for t in (8, 16, 32, 64) if params["rows"] <= t)
    one_scale = constants["ABLOCK"] == 128
    if tiles > 2 * MULTIPROCESSORS:
        tuning = block_group_tile(span_t, width, 3, 1, one_scale=one_scale)
        if tuning is None:
            return None
        return replace(tuning, tile={**tuning.tile, "TILE_N": 192 // parts})
    if parts > 1:
        return None
    splits = 2 if 2 * tiles <= MULTIPROCESSORS and width > LINE else 1
    return block_group_tile(span_t, width, 1, 4, splits, one_scale=one_scale)


def glu(constants: Constants, params: Params, *, wgmma: bool) -> Tuning:
    """Return the tuning of matmul_ternary_glu for a batch.

    Raises UnsupportedError for one row, for most prompts and for sizes that do not fit a block.
    """
    rows = int(params["rows"])
    tuning = None
    if not constants["BLOCK"]:
        tuning = _row_glu(params, wgmma=wgmma)
    elif wgmma and 1 < rows <= BATCH_ROWS:
        tuning = block_rows(constants, params, 2) if rows <= FEW_ROWS else None
        if tuning is None:
            tuning = block_group(constants, params, 2)
            tuning = tuning and replace(tuning, variant="block_group")
    if tuning:
        return tuning
    message = (
        f"matmul_ternary_glu has no tile for {rows} rows of {params['width']} columns; "
        "launch the product and the GLU separately"
    )
    raise UnsupportedError(message, backend="cuda", operation="tuning")


def _row_glu(params: Params, *, wgmma: bool) -> Tuning | None:
    """Return the tuning of matmul_ternary_glu for weights with a scale per row, or None if it is not supported."""
    rows = int(params["rows"])
    width = int(params["width"])
    if not FEW_ROWS // 2 < rows <= BATCH_ROWS:
        return None
    span_t = next(t for t in (8, 16, 32, 64) if rows <= t)
    tile = {"TILE_N": 64, "TILE_T": span_t, "SPLITS": 1}
    if span_t == FEW_ROWS:
        steps = ceil_div(width, 1280)
        if steps > 3:
            return None
        shared = max(FEW_ROWS * (width + 32), 21120)
        return tuned(640, tile, "few", M_TILES=2, SHARES=5, STEPS=steps, SHARED=shared)
    if not wgmma or int(params["outs"]) % 2:
        return None
    return group_tile(tile, 2, 2 if span_t == 16 else 1, width)
