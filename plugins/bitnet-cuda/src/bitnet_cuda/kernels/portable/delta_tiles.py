"""Tunings of the kernels of delta nets and rotated weights that bitnet-cuda and bitnet-rocm share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bitnet_hal.errors import UnsupportedError
from bitnet_hal.kernels.catalogue import ceil_div
from bitnet_hal.plugin import FEW_ROWS, Constants, Params, Tuning

from .tiles import MANY_ROWS, few, tuned

WIDEST_ROTATION = 4096
"""Columns of one Walsh-Hadamard transform, of which each thread of a block has four."""
COLUMNS = 32
"""Of a head's state, or channels of a convolution, that a block has: neighbouring threads read neighbouring columns."""

MOST_TAPS = 8
"""Inputs of a convolution that a thread has at once."""

FEWEST_GATES, MOST_GATES, FEWEST_COLUMNS = 64, 256, 1024
"""Rows of a table that keep a GPU busy and are no head's, and columns that keep a block's threads busy."""


def hadamard_rotate(params: Params) -> Tuning:
    """UnsupportedError for transforms that a block has no threads for."""
    block = rotation(params)
    return tuned(max(32, block // 4), HADAMARD=block)


def rotation(params: Params) -> int:
    """Columns of a transform; UnsupportedError for more than a block transforms."""
    if (block := int(params["block"])) > WIDEST_ROTATION:
        raise UnsupportedError(
            f"a rotation of {block} columns at a time; at most {WIDEST_ROTATION} are possible", operation="tuning"
        )
    return block


def causal_conv1d(params: Params) -> Tuning:
    """A thread for each channel of one row, or strips of rows for each: as many as a block has room for, where there
    are rows enough."""
    if int(params["rows"]) == 1 and int(params["taps"]) <= MOST_TAPS:
        return tuned(128, {"TILE_N": 128}, "row", TAPS=int(params["taps"]))
    strips = next(strips for strips in (4, 32) if int(params["rows"]) <= 8 * strips or strips == 32)
    return tuned(COLUMNS * strips, {"TILE_N": COLUMNS})


def gated_delta_rule(params: Params) -> Tuning:
    """EACH: keys of a thread."""
    group = 256
    return tuned(group, {"TILE_N": COLUMNS}, EACH=ceil_div(int(params["key_dim"]), group // COLUMNS))


def rotate_quantize(params: Params, *, norm: bool = False) -> Tuning:
    """One transform a block, or all of a row where rows are many and have a norm. UnsupportedError for less than a
    warp's columns."""
    block = rotation(params)
    if block % 128:
        raise UnsupportedError(f"a rotation of {block} columns at a time is no multiple of 128", operation="tuning")
    whole = norm and int(params["rows"]) > MANY_ROWS
    return tuned(block // 4, {"TILE_N": int(params["width"]) // block if whole else 1}, HADAMARD=block)


def gated_rotate_quantize(params: Params, norm: bool) -> Tuning:
    """UnsupportedError where a head with a norm is not a warp's."""
    dim, tuning = int(params["head_dim"]), rotate_quantize(params)
    if dim % 4 or (norm and (dim > 128 or dim & dim - 1)):
        raise UnsupportedError(f"no joined norm for heads of {dim} elements", operation="tuning")
    return replace(tuning, private={**tuning.private, "HEAD_DIM": dim})


CHOICES: dict[str, Callable[[Params], Tuning]] = {
    "hadamard_rotate": hadamard_rotate,
    "glu": lambda _: tuned(512),
    "causal_conv1d": causal_conv1d,
    "gated_delta_rule": gated_delta_rule,
    "glu_rotate_quantize": rotate_quantize,
    "gated_rms_norm": lambda params: tuned(min(256, 32 * ceil_div(int(params["head_dim"]), 32))),
}
"""By kernel, where its sizes alone decide."""


def narrow(constants: Constants, params: Params) -> Tuning | None:
    """matmul_dense_narrow.cu: a row of w for each block where rows of x are few. None for heads, and for rows that are
    short or not whole fours of columns."""
    outs, width, rows = (int(params[size]) for size in ("outs", "width", "rows"))
    if constants["DTYPE"] > 2 or not FEWEST_GATES <= outs <= MOST_GATES or width < FEWEST_COLUMNS or width % 4:
        return None
    group, tile_n = (256, 1) if rows <= FEW_ROWS else (128, 8)
    each = ceil_div(width, 4 * group)
    depth = each if tile_n == 1 and each <= 8 else 1
    return tuned(group, {"TILE_N": tile_n, "TILE_T": few(rows)}, "narrow", EACH=each, DEPTH=depth)


def select_tuning(name: str, constants: Constants, params: Params) -> Tuning | None:
    """Tuning of one launch; None for other kernels. UnsupportedError for what other kernels do."""
    if name == "matmul_dense":
        return narrow(constants, params)
    if name == "norm_rotate_quantize":
        return rotate_quantize(params, norm=bool(constants["NORM"]))
    if name == "gated_rotate_quantize":
        return gated_rotate_quantize(params, norm=bool(constants["NORM"]))
    return CHOICES[name](params) if name in CHOICES else None
