"""Elements that a binding needs, as functions of a launch's parameters and semantic constants."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from bitnet_hal.kernels.spec import Constants, Params, Size
from bitnet_hal.kernels.types import DENSE_BLOCKS, DenseType
from bitnet_hal.rounding import ceil_div

SCALE_COLUMNS = 32
"""Columns of quantized activations that have one entry in scale and in qsum if ABLOCK is not 0."""


def row_scales(width: int, act_group: int) -> int:
    """Return the scales (and sums) of a row of `width` quantized columns."""
    return width // SCALE_COLUMNS if act_group else 1


def product(*names: str, times: int = 1) -> Size:
    """Return a size of `times` times the product of these parameters."""

    def elements(params: Params, constants: Constants) -> int:
        return times * prod([int(params[name]) for name in names])

    return elements


def where(constant: str, size: Size) -> Size:
    """Return `size` for launches whose constant is not 0; the others do not read the binding."""

    def elements(params: Params, constants: Constants) -> int:
        return size(params, constants) if constants[constant] else 0

    return elements


def activation_scales(width: str) -> Size:
    """Return a size of one element for each row, or for each SCALE_COLUMNS of a row if ABLOCK is not 0."""

    def elements(params: Params, constants: Constants) -> int:
        return int(params["rows"]) * row_scales(int(params[width]), constants.get("ABLOCK", 0))

    return elements


def strided_rows(columns: str) -> Size:
    """Return a size of `rows` rows of `columns` elements, `stride` elements apart."""

    def elements(params: Params, constants: Constants) -> int:
        return (int(params["rows"]) - 1) * int(params["stride"]) + int(params[columns])

    return elements


def mask_words(params: Params, constants: Constants) -> int:
    """Return the words of a mask: one bit for each token, whole words for each row."""
    return int(params["rows"]) * ceil_div(int(params["vocab"]), 32)


def dense_rows(types: Sequence[DenseType], rows: str, columns: str) -> Size:
    """Return a size in bytes of rows of a dense table; DTYPE is an index of `types`."""

    def elements(params: Params, constants: Constants) -> int:
        block, nbytes = DENSE_BLOCKS[types[constants["DTYPE"]]]
        return int(params[rows]) * (int(params[columns]) // block * nbytes)

    return elements


def ternary_rows(times: int = 1, rows: str = "outs") -> Size:
    """Return a size in bytes of times * `rows` rows of codes, four codes in a byte."""

    def elements(params: Params, constants: Constants) -> int:
        return times * int(params[rows]) * (int(params["width"]) // 4)

    return elements


def group_scales(times: int = 1, rows: str = "outs") -> Size:
    """Return a size of one scale for each BLOCK columns of times * `rows` rows, or for each row if BLOCK is 0."""

    def elements(params: Params, constants: Constants) -> int:
        block = constants["BLOCK"]
        return times * int(params[rows]) * (ceil_div(int(params["width"]), block) if block else 1)

    return elements


def output(params: Params, constants: Constants) -> int:
    """Return the elements of y up to column y_first + outs - 1 of its last row; rows are y_stride apart."""
    rows, outs, stride, first = (int(params[name]) for name in ("rows", "outs", "y_stride", "y_first"))
    return (rows - 1) * stride + first + outs


def query_key_value(params: Params, constants: Constants) -> int:
    """Return the elements of [q | k | v] of every row."""
    rows, heads, kv_heads, dim = (int(params[name]) for name in ("rows", "n_heads", "n_kv_heads", "head_dim"))
    return rows * (heads + 2 * kv_heads) * dim


def history(params: Params, constants: Constants) -> int:
    """Return the elements of one row of history, a count and `ring` tokens; `index` determines the rows that a launch
    touches."""
    return int(params["ring"]) + 1
