"""Optional kernels that fuse hadamard_rotate and quantization with the norm, GLU or gate before them.

Each ABLOCK columns have their own scale. The rotation spreads a NaN or Inf over its `block` columns; only groups that
hold one afterwards get scale = NaN, q = 0 and qsum = 0. Any of them makes products of the row NaN.
"""

from __future__ import annotations

from bitnet_hal.kernels import sizes
from bitnet_hal.kernels.params import ACT_GROUP_SIZES, ANY, EPS, RELU2, ROWS, SIGMOID, SILU, u32
from bitnet_hal.kernels.sizes import product
from bitnet_hal.kernels.spec import Binding, Constants, KernelSpec, Params, Size
from bitnet_hal.kernels.types import Grid
from bitnet_hal.rounding import ceil_div

_GROUPS = {"ABLOCK": ACT_GROUP_SIZES[1:]}
_BLOCK = u32("block", "columns of a transform, a power of two and a multiple of 128")
_WIDTH = u32("width", "columns, a multiple of block")


def _transforms_by_rows(params: Params, tile: Constants) -> Grid:
    """Return one workgroup for TILE_N transforms of a row."""
    return ceil_div(int(params["width"]), int(params["block"]) * tile["TILE_N"]), int(params["rows"]), 1


def _transforms_of_heads_by_rows(params: Params, tile: Constants) -> Grid:
    """Return one workgroup for TILE_N transforms of a row of heads."""
    return (
        ceil_div(int(params["n_heads"]) * int(params["head_dim"]), int(params["block"]) * tile["TILE_N"]),
        int(params["rows"]),
        1,
    )


def _signs(*width: str) -> Binding:
    return Binding("signs", "f32", "r", f"[{' * '.join(width)}]", product(*width))


def _quantized(*width: str) -> tuple[Binding, Binding, Binding]:
    def scales(params: Params, constants: Constants) -> int:
        return elements(params, constants) // sizes.SCALE_COLUMNS

    elements: Size = product("rows", *width)
    columns = " * ".join(width)
    return (
        Binding("q", "i8", "w", f"[rows, {columns}]", elements),
        Binding("scale", "f32", "w", f"[rows, {columns} / 32]", scales),
        Binding("qsum", "i32", "w", f"[rows, {columns} / 32]", scales),
    )


NORM_ROTATE_QUANTIZE = KernelSpec(
    name="norm_rotate_quantize",
    meaning="y = rms_norm of x (NORM 1) or x (NORM 0), written only if KEEP is 1; then hadamard_rotate of y, "
    "quantized in groups of ABLOCK columns.",
    bindings=(
        Binding("x", "f32", "r", "[rows, width]", product("rows", "width")),
        Binding("gamma", "f32", "r", f"[width] {ANY.format('NORM')}", sizes.where("NORM", product("width"))),
        _signs("width"),
        Binding(
            "y", "f32", "w", "[rows, width] (any buffer if KEEP is 0)", sizes.where("KEEP", product("rows", "width"))
        ),
        *_quantized("width"),
    ),
    params=(ROWS, _WIDTH, _BLOCK, EPS),
    constants={"NORM": (0, 1), "KEEP": (0, 1), **_GROUPS},
    tuning=("TILE_N",),
    grid=_transforms_by_rows,
    base=False,
)

GLU_ROTATE_QUANTIZE = KernelSpec(
    name="glu_rotate_quantize",
    meaning="glu of gate_up, then hadamard_rotate, quantized in groups of ABLOCK columns.",
    bindings=(
        Binding("gate_up", "f32", "r", "[rows, 2 * width]", product("rows", "width", times=2)),
        _signs("width"),
        *_quantized("width"),
    ),
    params=(ROWS, _WIDTH, _BLOCK),
    constants={"ACT": (RELU2, SILU), **_GROUPS},
    tuning=("TILE_N",),
    grid=_transforms_by_rows,
    base=False,
)

GATED_ROTATE_QUANTIZE = KernelSpec(
    name="gated_rotate_quantize",
    meaning="gated_rms_norm, then hadamard_rotate, quantized in groups of ABLOCK columns.",
    bindings=(
        Binding("x", "f32", "r", "[rows, n_heads * head_dim]", product("rows", "n_heads", "head_dim")),
        Binding("gate", "f32", "r", "[rows, n_heads * head_dim]", product("rows", "n_heads", "head_dim")),
        Binding("gamma", "f32", "r", f"[head_dim] {ANY.format('NORM')}", sizes.where("NORM", product("head_dim"))),
        _signs("n_heads", "head_dim"),
        *_quantized("n_heads", "head_dim"),
    ),
    params=(
        ROWS,
        u32("n_heads", "heads"),
        u32("head_dim", "elements of a head"),
        u32("groups", "a divisor of n_heads"),
        _BLOCK,
        EPS,
    ),
    constants={"NORM": (0, 1), "ACT": (SILU, SIGMOID), **_GROUPS},
    tuning=("TILE_N",),
    grid=_transforms_of_heads_by_rows,
    base=False,
)
