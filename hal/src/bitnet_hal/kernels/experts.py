"""The optional kernels that models with a mixture of experts need (Maple).

A pair is a row t with one of its experts: pair t * used + i is row t with its i-th expert. Sources of the formulas:
Shazeer et al. 2017 (arXiv 1701.06538) for the mixture, llama.cpp's src/models/maple.cpp for Maple's router and clamp.
"""

from __future__ import annotations

from bitnet_hal.kernels import sizes
from bitnet_hal.kernels.params import ACT_GROUP_SIZES, QUANTIZED, ROWS, WEIGHT_GROUP_SIZES, per_row, u32
from bitnet_hal.kernels.sizes import product
from bitnet_hal.kernels.spec import Binding, Constants, KernelSpec, Param, Params
from bitnet_hal.kernels.types import Grid
from bitnet_hal.rounding import ceil_div

USED = u32("used", "experts of each row")
EXPERTS = u32("experts", "experts of the layer")


def _outs_by_experts(params: Params, tile: Constants) -> Grid:
    """Return one workgroup for TILE_N outputs of each expert, or of each pair if there are fewer pairs than experts."""
    return (
        ceil_div(int(params["outs"]), tile["TILE_N"]),
        min(int(params["rows"]) * int(params["used"]), int(params["experts"])),
        1,
    )


def _matrices(params: Params, constants: Constants) -> int:
    """Return the bytes of the codes of all experts."""
    return int(params["experts"]) * sizes.ternary_rows()(params, constants)


def _scales(params: Params, constants: Constants) -> int:
    """Return the weight scales of all experts."""
    return int(params["experts"]) * sizes.group_scales()(params, constants)


def _input_scales(params: Params, constants: Constants) -> int:
    """Return the activation scales of `inputs` rows for each row."""
    return int(params["inputs"]) * sizes.activation_scales("width")(params, constants)


def _output(params: Params, constants: Constants) -> int:
    """Return the elements of y up to column y_first + outs - 1 of the last pair."""
    pairs = int(params["rows"]) * int(params["used"])
    return sizes.output({**params, "rows": pairs}, constants)


ROUTE_EXPERTS = KernelSpec(
    name="route_experts",
    meaning="ids[t, i] = the experts of the `used` largest logits of row t in descending order, equal logits by "
    "ascending id; NaN counts as the largest. weights[t, i] = exp(logits[t, ids[t, i]]) / sum_j exp(logits[t, "
    "ids[t, j]]), without overflow: the softmax over the chosen experts.",
    bindings=(
        Binding("logits", "f32", "r", "[rows, experts]", product("rows", "experts")),
        Binding("ids", "i32", "w", "[rows, used]", product("rows", "used")),
        Binding("weights", "f32", "w", "[rows, used]", product("rows", "used")),
    ),
    params=(ROWS, EXPERTS, u32("used", "experts of each row, 1..256, at most experts")),
    grid=per_row,
    base=False,
)

MATMUL_EXPERTS = KernelSpec(
    name="matmul_experts",
    meaning="matmul_ternary_block (ADD 0) of each pair of a row t and one of its experts e = ids[t, i]: "
    "y[t * used + i, y_first + n] is the product of row t * inputs + i % inputs of q and row e * outs + n of w. Rows "
    "of y whose expert is not in 0..experts - 1 are not written. The grid has a workgroup in y for each expert, or "
    "for each pair t * used + i if there are fewer pairs than experts.",
    bindings=(
        Binding("w", "u8", "r", "[experts * outs, width / 4]", _matrices),
        Binding("wscale", "f32", "r", "[experts * outs, ceil(width / BLOCK)]", _scales),
        Binding("q", "i8", "r", "[rows * inputs, width]", product("rows", "inputs", "width")),
        Binding("scale", "f32", "r", "[rows * inputs] or [rows * inputs, width / 32]", _input_scales),
        Binding("qsum", "i32", "r", "[rows * inputs] or [rows * inputs, width / 32]", _input_scales),
        Binding("ids", "i32", "r", "[rows, used]", product("rows", "used")),
        Binding("y", "f32", "rw", "[rows * used, y_stride]", _output),
    ),
    params=(
        ROWS,
        u32("outs", "matrix rows N of one expert"),
        u32("width", "matrix columns, padded to 128"),
        u32("y_stride", "elements between rows of y"),
        u32("y_first", "column of y for matrix row 0"),
        EXPERTS,
        USED,
        u32("inputs", "rows of q for each row: 1, or `used`"),
    ),
    constants={"BLOCK": WEIGHT_GROUP_SIZES, "ABLOCK": ACT_GROUP_SIZES},
    tuning=("TILE_N",),
    grid=_outs_by_experts,
    base=False,
)

CLAMP_GLU_QUANTIZE = KernelSpec(
    name="clamp_glu_quantize",
    meaning="m = g / (1 + exp(-g)) * u with g = min(gate, limit), u = max(min(up, limit), -limit) and gate_up = "
    "[gate | up]; then each row of m is quantized. NaN stays NaN.",
    bindings=(
        Binding("gate_up", "f32", "r", "[rows, 2 * width]", product("rows", "width", times=2)),
        *QUANTIZED,
    ),
    params=(
        ROWS,
        u32("width", "columns F"),
        u32("stride", "columns of q: width padded to 128"),
        Param("limit", "f32", "largest gate, and largest absolute value of up"),
    ),
    constants={"ABLOCK": ACT_GROUP_SIZES},
    grid=per_row,
    base=False,
)

SUM_EXPERTS = KernelSpec(
    name="sum_experts",
    meaning="x[t, :] += sum_i weights[t, i] * y[t * used + i, :], the terms added in the order of i.",
    bindings=(
        Binding("y", "f32", "r", "[rows * used, width]", product("rows", "used", "width")),
        Binding("weights", "f32", "r", "[rows, used]", product("rows", "used")),
        Binding("x", "f32", "rw", "[rows, width]", product("rows", "width")),
    ),
    params=(ROWS, u32("width", "columns"), USED),
    grid=per_row,
    base=False,
)
