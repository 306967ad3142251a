"""Tunings of the kernels of delta nets and rotated weights that bitnet-cuda and bitnet-rocm share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bitnet_hal.errors import UnsupportedError
from bitnet_hal.kernels.catalogue import ceil_div
from bitnet_hal.plugin import Constants, Params, Tuning

from .tiles import MANY_ROWS, few, tuned

WIDEST_ROTATION = 4096
"""The maximum number of columns of a Walsh-Hadamard transform: four for each thread of a block."""
COLUMNS = 32
"""The columns of a head's state, or channels of a convolution, of a block: neighbouring threads read neighbours."""
RUN_ROWS = 64
"""The rows of a step up to which several blocks share the sequences: each of them may have a sequence of its own."""
MOST_SHARES = 32
"""The maximum number of blocks that share the sequences of a step."""
RUN_CHANNELS = 128
"""The channels of a block of causal_conv1d_runs.cu."""

MOST_TAPS = 8
"""The maximum number of inputs of a convolution that a thread holds in registers."""

DELTA_THREADS = 256
"""The threads of a block of gated_delta_rule.cu."""

FEWEST_GATES = 64
"""The minimum number of rows of a gate's table: enough blocks to keep a GPU busy."""
MOST_GATES = 256
"""The maximum number of rows of a gate's table; a larger table is a head."""
FEWEST_COLUMNS = 1024
"""The minimum number of columns of a gate's table: enough to keep the threads of a block busy."""
GATE_THREADS = 256
"""The threads of a block of matmul_dense_narrow.cu."""
GATE_BLOCKS = 256
"""The blocks of it that run at once on a large GPU."""
MOST_GATE_ROWS = 8
"""The maximum number of rows of the table of its blocks."""
MOST_GATE_VECTORS = 10
"""The maximum number of vectors of the table that a thread loads at once."""
BF16 = 2
"""The last DTYPE of matmul_dense_narrow.cu: it reads f32, f16 and bf16 tables, not quantized ones."""


def hadamard_rotate(params: Params) -> Tuning:
    """Return the tuning of hadamard_rotate.cu. Raises UnsupportedError for more than WIDEST_ROTATION columns."""
    block = rotation(params)
    return tuned(max(32, block // 4), HADAMARD=block)


def rotation(params: Params) -> int:
    """Return the number of columns of a transform. Raises UnsupportedError for more than WIDEST_ROTATION."""
    block = int(params["block"])
    if block > WIDEST_ROTATION:
        message = f"a rotation has {block} columns; at most {WIDEST_ROTATION} are supported"
        raise UnsupportedError(message, operation="tuning")
    return block


def run_shares(rows: int) -> int:
    """Return the number of blocks that share the sequences of a step of RUN_ROWS rows at most: a power of two."""
    return min(MOST_SHARES, 1 << (rows - 1).bit_length())


def causal_conv1d(params: Params) -> Tuning:
    """Return the tuning of causal_conv1d_runs.cu for few rows, else of causal_conv1d.cu.

    Many rows are divided into 32 strips, the maximum of a block, each with a thread per channel.
    """
    rows = int(params["rows"])
    taps = int(params["taps"])
    if rows <= RUN_ROWS and taps <= MOST_TAPS:
        return tuned(RUN_CHANNELS, {"TILE_N": RUN_CHANNELS // run_shares(rows)}, "runs", TAPS=taps)
    return tuned(COLUMNS * 32, {"TILE_N": COLUMNS})


def gated_delta_rule(params: Params) -> Tuning:
    """Return the tuning of gated_delta_rule.cu. EACH: the key elements of a thread."""
    rows = int(params["rows"])
    shares = run_shares(rows) if rows <= RUN_ROWS else 1
    each = ceil_div(int(params["key_dim"]), DELTA_THREADS // COLUMNS)
    return tuned(DELTA_THREADS, {"TILE_N": COLUMNS // shares}, COLUMNS=COLUMNS, EACH=each)


def rotate_quantize(params: Params, *, norm: bool = False) -> Tuning:
    """Return the tuning of the kernels that rotate and quantize.

    A block makes one transform, or all transforms of a row if there are many rows and a norm. Raises UnsupportedError
    if the columns of a transform do not fill whole warps.
    """
    block = rotation(params)
    if block % 128:
        message = f"a rotation has {block} columns, which is not a multiple of 128"
        raise UnsupportedError(message, operation="tuning")
    whole_rows = norm and int(params["rows"]) > MANY_ROWS
    transforms = int(params["width"]) // block if whole_rows else 1
    return tuned(block // 4, {"TILE_N": transforms}, HADAMARD=block)


def gated_rotate_quantize(params: Params, norm: bool) -> Tuning:
    """Return the tuning of gated_rotate_quantize.cu.

    Raises UnsupportedError if a head with a norm does not fit one warp.
    """
    tuning = rotate_quantize(params)
    head_dim = int(params["head_dim"])
    power_of_two = head_dim & (head_dim - 1) == 0
    fits_warp = head_dim <= 128 and power_of_two
    if head_dim % 4 or (norm and not fits_warp):
        message = f"heads of {head_dim} elements cannot be normed in the launch that rotates and quantizes"
        raise UnsupportedError(message, operation="tuning")
    return replace(tuning, private={**tuning.private, "HEAD_DIM": head_dim})


def glu(_: Params) -> Tuning:
    """Return the tuning of glu.cu."""
    return tuned(512)


def gated_rms_norm(params: Params) -> Tuning:
    """Return the tuning of gated_rms_norm.cu: a thread per element of a head, up to 256."""
    return tuned(min(256, 32 * ceil_div(int(params["head_dim"]), 32)))


CHOICES: dict[str, Callable[[Params], Tuning]] = {
    "hadamard_rotate": hadamard_rotate,
    "glu": glu,
    "causal_conv1d": causal_conv1d,
    "gated_delta_rule": gated_delta_rule,
    "glu_rotate_quantize": rotate_quantize,
    "gated_rms_norm": gated_rms_norm,
}
"""The functions for the kernels whose tuning depends on sizes alone."""


def narrow(constants: Constants, params: Params) -> Tuning | None:
    """Return the tuning of matmul_dense_narrow.cu; None if the table is not a gate's, or quantized, or not in vectors.

    The order of a sum does not depend on the number of rows. A block has so many rows of the table, at most
    MOST_GATE_ROWS, that the blocks are few enough to run at once. EACH: the vectors of four columns of a thread. DEPTH:
    how many of them it loads before it multiplies.
    """
    outs = int(params["outs"])
    width = int(params["width"])
    rows = int(params["rows"])
    is_gate = FEWEST_GATES <= outs <= MOST_GATES
    if constants["DTYPE"] > BF16 or not is_gate or width < FEWEST_COLUMNS or width % 4:
        return None
    tile_t = few(rows)
    row_tiles = ceil_div(rows, tile_t)
    tile_n = next(n for n in (1, 2, 4, 8) if n == MOST_GATE_ROWS or ceil_div(outs, n) * row_tiles <= GATE_BLOCKS)
    each = ceil_div(width, 4 * GATE_THREADS)
    depth = each if each * tile_n <= MOST_GATE_VECTORS else 1
    return tuned(GATE_THREADS, {"TILE_N": tile_n, "TILE_T": tile_t}, "narrow", EACH=each, DEPTH=depth)


def select_tuning(name: str, constants: Constants, params: Params) -> Tuning | None:
    """Return the tuning of a launch, or None if this module does not tune the kernel.

    Raises UnsupportedError if other kernels must serve the launch.
    """
    if name == "matmul_dense":
        return narrow(constants, params)
    if name == "norm_rotate_quantize":
        return rotate_quantize(params, norm=bool(constants["NORM"]))
    if name == "gated_rotate_quantize":
        return gated_rotate_quantize(params, norm=bool(constants["NORM"]))
    return CHOICES[name](params) if name in CHOICES else None
