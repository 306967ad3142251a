"""Bindings, parameters and grid functions that several kernels share."""

from __future__ import annotations

from bitnet_hal.kernels import sizes
from bitnet_hal.kernels.sizes import product
from bitnet_hal.kernels.spec import Binding, Constants, Param, Params
from bitnet_hal.kernels.types import DenseType, Grid
from bitnet_hal.rounding import ceil_div

KV_BLOCK = 64
"""Slots of one cache block."""

KV_TYPES = ("f32", "f16", "int8")
DENSE_TYPES: tuple[DenseType, ...] = ("f32", "f16", "bf16", "q8_0", "q6_K")
PRODUCT = frozenset({"rows", "outs", "width"})
"""Parameters of a matrix product: its multiply-adds, and the sizes that its tiling may depend on."""
RELU2, SILU, SIGMOID = 0, 1, 2
STEP_FIELDS = 4
"""i32 values in one row of the step buffer."""


def kv_row_bytes(kv: int, head_dim: int) -> int:
    """Return the bytes of one cache row of one key/value head; kv is an index of KV_TYPES."""
    return (4 * head_dim, 2 * head_dim, 4 + ceil_div(head_dim, 4) * 4)[kv]


def per_row(params: Params, tile: Constants) -> Grid:
    """Return one workgroup for each row."""
    return int(params["rows"]), 1, 1


def outs_by_rows(params: Params, tile: Constants) -> Grid:
    """Return one workgroup for TILE_N matrix rows by TILE_T rows."""
    return ceil_div(int(params["outs"]), tile["TILE_N"]), ceil_div(int(params["rows"]), tile["TILE_T"]), 1


def outs_by_rows_split(params: Params, tile: Constants) -> Grid:
    """Return SPLITS workgroups for TILE_N matrix rows by TILE_T rows, which share the columns."""
    return ceil_div(int(params["outs"]), tile["TILE_N"]), ceil_div(int(params["rows"]), tile["TILE_T"]), tile["SPLITS"]


def per_row_split(params: Params, tile: Constants) -> Grid:
    """Return SPLITS workgroups for each row."""
    return int(params["rows"]), 1, tile["SPLITS"]


def hidden_by_rows(params: Params, tile: Constants) -> Grid:
    """Return one workgroup for TILE_N columns of a row."""
    return ceil_div(int(params["hidden"]), tile["TILE_N"]), int(params["rows"]), 1


def all_heads_by_rows(params: Params, tile: Constants) -> Grid:
    """Return one workgroup for TILE_N heads of [q | k | v] of a row."""
    return ceil_div(int(params["n_heads"]) + 2 * int(params["n_kv_heads"]), tile["TILE_N"]), int(params["rows"]), 1


def heads_by_rows(params: Params, tile: Constants) -> Grid:
    """Return SPLITS workgroups for TILE_N query heads by TILE_T rows, which share the positions."""
    return (
        ceil_div(int(params["n_heads"]), tile["TILE_N"]),
        ceil_div(int(params["rows"]), tile["TILE_T"]),
        tile["SPLITS"],
    )


def u32(name: str, meaning: str) -> Param:
    return Param(name, "u32", meaning)


ROWS = u32("rows", "rows T (or L) of this launch")
EPS = Param("eps", "f32", "added to the mean square")
CACHE_BLOCK = product("n_kv_heads", "row_bytes", times=KV_BLOCK)
"""Elements of one cache block; the block tables determine the blocks that a launch touches."""
QUANTIZED = (
    Binding("q", "i8", "w", "[rows, stride]", product("rows", "stride")),
    Binding("scale", "f32", "w", "[rows] or [rows, stride / 32]", sizes.activation_scales("stride")),
    Binding("qsum", "i32", "w", "[rows] or [rows, stride / 32]", sizes.activation_scales("stride")),
)
ANY = "(any buffer if {} is 0)"
ACT_GROUP_SIZES = (0, 32, 128)
"""Group sizes of activations: columns that share a scale; 0: one scale for each row."""
WEIGHT_GROUP_SIZES = (64, 128, 256)
"""Group sizes of weights: columns that share a scale."""
HEAD_GAMMAS = (
    Binding("q_gamma", "f32", "r", f"[head_dim] {ANY.format('QKNORM')}", sizes.where("QKNORM", product("head_dim"))),
    Binding("k_gamma", "f32", "r", f"[head_dim] {ANY.format('QKNORM')}", sizes.where("QKNORM", product("head_dim"))),
)
"""Weights of the norm of each query and key head."""
MATMUL_PARAMS = (
    ROWS,
    u32("outs", "matrix rows N"),
    u32("width", "matrix columns, padded to 128"),
    u32("y_stride", "elements between rows of y"),
    u32("y_first", "column of y for matrix row 0"),
)
