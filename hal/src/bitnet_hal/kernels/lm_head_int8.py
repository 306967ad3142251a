"""Exact top-k logits of an f16 head through an int8 copy of half its size.

With c the codes of row n, s its scale and e its error, |w . x - s c . x| <= |w - s c| |x| <= e |x| (Cauchy-Schwarz):
the exact logit of row n lies within e |x| of its approximate logit s c . x. The k-th largest lower bound of these is a
lower bound of the k-th largest logit. Rows whose upper bound is below it are not among the k largest; the logits of all
others are computed from f16.
"""

from __future__ import annotations

from bitnet_hal.kernels import sizes
from bitnet_hal.kernels.params import ROWS, outs_by_rows, u32
from bitnet_hal.kernels.sizes import product
from bitnet_hal.kernels.spec import Binding, Constants, KernelSpec, Params
from bitnet_hal.kernels.types import Grid
from bitnet_hal.rounding import ceil_div

HEAD_GROUP = 64
"""Consecutive rows of the head that share one bound: the largest of their lower bounds."""


def _groups(params: Params, constants: Constants) -> int:
    return int(params["rows"]) * ceil_div(int(params["outs"]), HEAD_GROUP)


def _f16_rows(params: Params, constants: Constants) -> int:
    return 2 * int(params["outs"]) * int(params["width"])


def _outs(params: Params, tile: Constants) -> Grid:
    return ceil_div(int(params["outs"]), tile["TILE_N"]), 1, 1


_COPY = (
    Binding("codes", "i8", "r", "[outs, width]", product("outs", "width")),
    Binding("scale", "f32", "r", "[outs]", product("outs")),
    Binding("error", "f32", "r", "[outs]", product("outs")),
)
_SHAPE = (u32("outs", "rows V of the head"), u32("width", "columns K of the head, a multiple of 4"))

PACK_HEAD = KernelSpec(
    name="pack_head",
    meaning="The int8 copy of w f16[outs, width]: scale[n] = max|w[n]| / 127, codes[n, k] = round(w[n, k] / scale[n]), or 0 "
    "in a row of zeros. error[n] is an upper bound of e = |w[n] - scale[n] codes[n]| + r |w[n]| and at most 1.1 e, with "
    "r = 3 (width + 64) 2^-24 for the rounding of the f32 sums of approx_logits and matmul_dense. A row that holds a NaN "
    "or Inf gets scale = NaN and codes 0.",
    bindings=(
        Binding("w", "u8", "r", "[outs, width] f16", _f16_rows),
        Binding("codes", "i8", "w", "[outs, width]", product("outs", "width")),
        Binding("scale", "f32", "w", "[outs]", product("outs")),
        Binding("error", "f32", "w", "[outs]", product("outs")),
    ),
    params=_SHAPE,
    tuning=("TILE_N",),
    grid=_outs,
    base=False,
)

APPROX_LOGITS = KernelSpec(
    name="approx_logits",
    meaning="logits[l, n] = scale[n] * sum_k codes[n, k] * x[l, k], with sums in f32; bound[l, g] = the largest "
    f"logits[l, n] - error[n] |x[l]| of the {HEAD_GROUP} rows n of group g, or NaN if one of these is not finite.",
    bindings=(
        Binding("x", "f32", "r", "[rows, width]", product("rows", "width")),
        *_COPY,
        Binding("logits", "f32", "rw", "[rows, stride]", sizes.strided_rows("outs")),
        Binding("bound", "f32", "w", f"[rows, ceil(outs / {HEAD_GROUP})]", _groups),
    ),
    params=(ROWS, *_SHAPE, u32("stride", "elements between rows of logits")),
    tuning=("TILE_N", "TILE_T"),
    grid=outs_by_rows,
    base=False,
)

REFINE_LOGITS = KernelSpec(
    name="refine_logits",
    meaning="Replaces each approximate logits[l, n] that may be among the k largest with the exact sum_k x[l, k] * w[n, k] of "
    "matmul_dense: those with logits[l, n] + error[n] |x[l]| not below the k-th largest of bound[l], or all of them if one of "
    "bound[l] is NaN or there are fewer than k bounds. The others keep their approximate logits, which are below the k-th "
    "largest exact logit.",
    bindings=(
        Binding("x", "f32", "r", "[rows, width]", product("rows", "width")),
        Binding("w", "u8", "r", "[outs, width] f16", _f16_rows),
        Binding("error", "f32", "r", "[outs]", product("outs")),
        Binding("bound", "f32", "r", f"[rows, ceil(outs / {HEAD_GROUP})]", _groups),
        Binding("logits", "f32", "rw", "[rows, stride]", sizes.strided_rows("outs")),
    ),
    params=(ROWS, *_SHAPE, u32("stride", "elements between rows of logits"), u32("k", "1..256")),
    tuning=("TILE_N", "TILE_T"),
    grid=outs_by_rows,
    base=False,
)
