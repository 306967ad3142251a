"""Tunings of the tensor-core kernels for prompts and batches.

The ternary products of batches are in batch_tiles.py, the products of tables in table_tiles.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from bitnet_hal.kernels.catalogue import KV_BLOCK
from bitnet_hal.plugin import FEW_ROWS, Constants, Params, Tuning
from bitnet_hal.rounding import ceil_div

from bitnet_cuda import batch_tiles, table_tiles
from bitnet_cuda.kernels.portable.tiles import F16, INT8, quantize, tuned
from bitnet_cuda.limits import (
    BATCH_ROWS,
    COPY_ALIGNMENT,
    FULL_GPU,
    LONG_ROWS,
    MULTIPROCESSORS,
    PERSISTENT,
    attention_dims,
)

SPREAD = {"SHARED": 113 << 10, "BESIDE": 76 << 10}
"""The bytes of shared memory that limit the blocks of a norm to one (SHARED) or two (BESIDE) per multiprocessor.

Without such a limit the blocks gather on few multiprocessors. `recording.apart` chooses between the two.
"""
LATE = {"LATE": 1}
"""The constant of norms after which the next kernel starts once the kernels before the norm have ended."""


def select_tuning(name: str, constants: Constants, params: Params, *, wgmma: bool) -> Tuning | None:
    """Return the tuning of a launch, or None if this module does not serve it.

    Raises UnsupportedError for a GLU that must be launched separately.
    """
    if name == "matmul_ternary":
        return ternary(constants, params, wgmma=wgmma)
    if name == "matmul_ternary_block":
        return ternary_block(constants, params, wgmma=wgmma)
    if name == "matmul_ternary_glu":
        return ternary_glu(constants, params, wgmma=wgmma)
    if name == "rms_norm_quantize":
        return norm_quantize(params) if wgmma else None
    if name == "matmul_dense":
        return table_tiles.dense(constants, params, wgmma=wgmma)
    if name == "approx_logits":
        return table_tiles.approx(params) if wgmma else None
    if name == "attention":
        supported = constants["KV"] in (F16, INT8) and params["head_dim"] in attention_dims(wgmma=wgmma)
        if not supported or int(params["rows"]) <= BATCH_ROWS:
            return None
        return attention_tile(params, wgmma=wgmma and constants["KV"] == F16, kv=constants["KV"])
    return None


def ternary(constants: Constants, params: Params, *, wgmma: bool) -> Tuning | None:
    """Return the tuning of a ternary product with a weight scale per row, or None for few rows."""
    rows = int(params["rows"])
    if rows <= FEW_ROWS:
        return None
    tuning = None
    if rows <= BATCH_ROWS:
        if wgmma:
            tuning = batch_tiles.group(constants["ADD"], params)
        tuning = tuning or batch_tiles.batch(params)
    elif wgmma and copies_fit(params):
        tuning = soonest(STREAM, params)
    if tuning:
        return tuning
    large_tiles = ceil_div(int(params["outs"]), 128) * ceil_div(rows, 128)
    if large_tiles >= FULL_GPU:  # as measured on an H200 with 2B-4T
        return mma_tile(128, 128, (4, 2), 4)
    return mma_tile(64, 64, (2, 2), 4)


def ternary_block(constants: Constants, params: Params, *, wgmma: bool) -> Tuning | None:
    """Return the tuning of a ternary product with block scales, or None for few rows."""
    rows = int(params["rows"])
    if rows <= FEW_ROWS:
        return None
    if wgmma and rows > BATCH_ROWS and copies_fit(params):
        return soonest(WIDE if has_wide_scales(constants) else BLOCK_STREAM, params)
    if rows <= 32:
        return mma_tile(64, 16 * ceil_div(rows, 16), (4, 1), 4, resident=4)
    return mma_tile(64, 64, (2, 2), 4, resident=3)


def ternary_glu(constants: Constants, params: Params, *, wgmma: bool) -> Tuning:
    """Return the tuning of matmul_ternary_glu. Raises UnsupportedError if there is none for the sizes or scales."""
    wide = has_wide_scales(constants)
    is_prompt = int(params["rows"]) > BATCH_ROWS
    if wgmma and is_prompt and int(params["outs"]) % 32 == 0:
        if wide:
            return WIDE[256, 128]
        if not constants["BLOCK"]:
            return STREAM[256, 128]
    return batch_tiles.glu(constants, params, wgmma=wgmma)


def has_wide_scales(constants: Constants) -> bool:
    """Return whether 128 columns have one activation scale and one weight scale, as block_wide.cuh needs."""
    return constants["ABLOCK"] == 128 and constants["BLOCK"] > 64


def copies_fit(params: Params) -> bool:
    """Return whether the rows of the weights and of y are in whole groups, as the kernels of stream.cuh need."""
    whole_outs = int(params["outs"]) % 32 == 0
    return whole_outs and int(params["y_stride"]) % 4 == 0 and int(params["y_first"]) % 4 == 0


def norm_quantize(params: Params) -> Tuning | None:
    """Return the tuning of rms_norm_quantize.cu for a batch on compute capability 9.0, or None for other steps.

    The constants beside those of `quantize` change no result; they were chosen by measurement.
    """
    rows = int(params["rows"])
    is_long = int(params["stride"]) >= LONG_ROWS
    if not FEW_ROWS // 2 < rows <= BATCH_ROWS:
        return None
    further: dict[str, int] = {}
    if rows <= FEW_ROWS:
        if is_long:
            further = LATE
    elif not is_long:
        further = SPREAD
    elif rows <= 32:
        further = {"SHARED": SPREAD["SHARED"]}
    else:
        further = {"SHARED": SPREAD["BESIDE"], **LATE}
    return Tuning(private={**quantize(params).private, **further})


def mma_tile(tile_n: int, tile_t: int, warps: tuple[int, int], stages: int, resident: int = 0) -> Tuning:
    """Return the tuning of matmul_ternary_mma.cu, or of matmul_ternary_block_mma.cu with `resident` blocks per
    multiprocessor.

    warps: (along the weight rows, along the tokens).
    """
    warps_n, warps_t = warps
    token_bytes = 144 if resident else 128  # the block's 128 columns, with four scales for block scales
    return tuned(
        32 * warps_n * warps_t,
        {"TILE_N": tile_n, "TILE_T": tile_t, "SPLITS": 1},
        "mma",
        WARPS_N=warps_n,
        WARPS_T=warps_t,
        STAGES=stages,
        RESIDENT=resident,
        SHARED=stages * (32 * tile_n + token_bytes * tile_t),
    )


def stream_tile(m_tiles: int, stages: int, span_t: int = 128, warpgroups: int = 2, variant: str = "stream") -> Tuning:
    """Return the tuning of the kernels of row_stream.cuh, or of block_wide.cuh (variant "wide").

    Each warpgroup multiplies 64 * m_tiles weight rows; one more copies.
    """
    code_bytes = 32 * 64 * m_tiles * warpgroups
    token_bytes = 128 * span_t
    scale_bytes = 2048 if variant == "wide" else 0
    stage_bytes = code_bytes + token_bytes + scale_bytes
    return tuned(
        128 + 128 * warpgroups,
        PERSISTENT,
        variant,
        M_TILES=m_tiles,
        SPAN_T=span_t,
        STAGES=stages,
        SHARED=stages * stage_bytes + 16 * span_t + COPY_ALIGNMENT,
    )


def block_stream_tile(weight_rows: int, stages: int) -> Tuning:
    """Return the tuning of matmul_ternary_block_stream.cu: two warpgroups of 64 tokens each, 96 or 128 weight rows.

    A stage has activations and weights as f16 with the scales of both, a line the codes of four column blocks and the
    scales of the activations.
    """
    span_t = 128
    stage_bytes = 128 * span_t + 256 * weight_rows + 16 * span_t + 1024
    line_bytes = 128 * weight_rows + 64 * span_t
    return tuned(
        3 * 128,
        PERSISTENT,
        "stream",
        WEIGHT_ROWS=weight_rows,
        SPAN_T=span_t,
        STAGES=stages,
        SHARED=stages * stage_bytes + 2 * line_bytes + COPY_ALIGNMENT,
    )


BLOCK_STREAM = {(128, 128): block_stream_tile(128, 3), (96, 128): block_stream_tile(96, 4)}
"""The tunings of matmul_ternary_block_stream.cu by (weight rows, tokens) of a tile."""
STREAM = {
    (256, 128): stream_tile(2, 9, 128),
    (256, 96): stream_tile(2, 11, 96),
    (128, 128): stream_tile(1, 11, 128),
    (128, 96): stream_tile(1, 13, 96),
}
"""The tunings of row_stream.cuh by (weight rows, tokens) of a tile."""
WIDE = {
    (128, 128): stream_tile(1, 8, 128, 2, "wide"),
    (192, 128): stream_tile(1, 7, 128, 3, "wide"),
    (256, 128): stream_tile(2, 6, 128, 2, "wide"),
}
"""The tunings of block_wide.cuh by (weight rows, tokens) of a tile."""


def soonest(tiles: Mapping[tuple[int, int], Tuning], params: Params) -> Tuning:
    """Return the tuning with the least estimated time; tiles: by (weight rows, tokens).

    A tile takes time as if it had 64 weight rows and 48 tokens more. The blocks of the GPU take the tiles in turns.
    """
    rows = int(params["rows"])
    outs = int(params["outs"])

    def time(size: tuple[int, int]) -> int:
        tile_n, tile_t = size
        turns = ceil_div(ceil_div(outs, tile_n) * ceil_div(rows, tile_t), MULTIPROCESSORS)
        return turns * (tile_n + 64) * (tile_t + 48)

    return tiles[min(tiles, key=time)]


def attention_tile(params: Params, *, wgmma: bool, kv: int) -> Tuning:
    """Return the tuning of attention_wgmma.cu, which reads f16 caches alone, or of attention_mma.cu.

    PAIRED: the two warpgroups of a block share positions, if blocks with rows for each would not fill the GPU.
    """
    n_heads = int(params["n_heads"])
    head_dim = int(params["head_dim"])
    group_heads = n_heads // int(params["n_kv_heads"])
    heads = next(n for n in (4, 2, 1) if group_heads % n == 0)
    tile = {"TILE_N": heads, "SPLITS": 1}
    if not wgmma or head_dim != 128:
        query_bytes = 256 * head_dim if head_dim > 128 else 0  # shorter queries stay in registers
        tile_bytes = 4 * KV_BLOCK * head_dim  # keys and values as f16
        # of f16 caches another tile is on its way; of int8 caches two blocks of codes, and the scales of one
        beside = tile_bytes if kv == F16 else 4 * KV_BLOCK * (4 + head_dim) + 8 * KV_BLOCK
        shared = tile_bytes + beside + query_bytes
        return tuned(128, {**tile, "TILE_T": 64 // heads}, "mma", HEAD_DIM=head_dim, SHARED=shared)
    blocks = ceil_div(int(params["rows"]), 128 // heads) * (n_heads // heads)
    paired = blocks < MULTIPROCESSORS
    queries = 64 if paired else 128
    stages = 6
    return tuned(
        384,
        {**tile, "TILE_T": queries // heads},
        "wgmma",
        HEAD_DIM=head_dim,
        PAIRED=int(paired),
        STAGES=stages,
        SHARED=stages * 4 * head_dim * KV_BLOCK + COPY_ALIGNMENT,
    )
