"""Conventions of all kernels, and the pieces that their descriptions are made of.

Letters: T rows of this step (one row = one token of one sequence), L rows whose logits are wanted, H hidden width,
K columns and N rows of a matrix, F feed-forward width, V vocabulary, D head_dim, S sequences, B blocks of a sequence.

**step** is i32[T, 4]: token, position, slot, sequence of each row. Position -1 marks an unused row: kernels write
nothing to caches for it. A slot is block * 64 + offset in the paged cache.

**Caches** hold one row per slot and key/value head: byte address of (slot, head) =
((slot / 64 * n_kv_heads + head) * 64 + slot % 64) * row_bytes. KV = 0: f32[D]; KV = 1: f16[D]; KV = 2: one f32 scale,
then i8[D] (value = code * scale, scale = absmax / 127, 0 for an all-zero row), row_bytes rounded up to 4 (the rest 0).

**Quantized activations** are q i8[T, stride], scale f32[T], qsum i32[T], after BitNet b1.58 (absmax per token):
a = max(max|y|, 1e-5), q = clip(round_half_even(y * (127 / a)), -128, 127), scale = a / 127, qsum = sum of q; columns
width..stride-1 of q are 0. ABLOCK 32: the same for each block of 32 columns, the floor being 1e-20 (llama.cpp's
numerics for weight-only models): scale f32[T, stride / 32], qsum i32[T, stride / 32]; blocks past `width` are those
of zeros. ABLOCK 128: a is that of 128 columns; scale and qsum stay those of 32 (four equal scales, four sums), so that
only what quantizes, and what gains by it, tells the two apart. A row that holds a NaN or Inf, or whose sum of squares
overflows, gets scale = NaN (in all its blocks), q = 0, qsum = 0, so that it cannot pass for an answer.

**Ternary weights** are I2_S 128-blocks: byte p of a 32-byte block holds columns p (bits 7-6), 32+p (5-4), 64+p (3-2),
96+p (1-0); code 0, 1, 2 means -1, 0, +1. `width` is K rounded up to 128; any code may fill the rest, where q is 0.

**Block scales**: where BLOCK is not 0, wscale is f32[N, ceil(width / BLOCK)], a scale for BLOCK columns of a row.

**States** of delta nets are f32, for each sequence one of a fixed size, which position 0 begins as zeros. A sequence's
rows in a step stand next to each other at rising positions, and go on from the state that the last step left.

**Masks** are i32[L, ceil(V / 32)]: bit i % 32 of word i / 32 is 1 where token i may be chosen.

**Dense tables**: DTYPE 0 f32, 1 f16, 2 bf16, 3 q8_0 (32 elements: f16 d, i8[32]), 4 q6_K (256 elements, 210 bytes).

Sums of a ternary product are exact integers (so all devices agree); everything else is f32.
"""

from __future__ import annotations

from bitnet_core.kernels import sizes
from bitnet_core.kernels.sizes import product
from bitnet_core.kernels.spec import Binding, Constants, Param, Params
from bitnet_core.kernels.types import DenseType, Grid

KV_BLOCK = 64
"""Cache slots of one block."""

KV_TYPES = ("f32", "f16", "int8")
DENSE_TYPES: tuple[DenseType, ...] = ("f32", "f16", "bf16", "q8_0", "q6_K")
RELU2, SILU, SIGMOID = 0, 1, 2
STEP_FIELDS = 4
"""i32 values of one row of the step buffer."""


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def kv_row_bytes(kv: int, head_dim: int) -> int:
    """Bytes of one cache row of one key/value head; kv indexes KV_TYPES."""
    return (4 * head_dim, 2 * head_dim, 4 + ceil_div(head_dim, 4) * 4)[kv]


def per_row(params: Params, tile: Constants) -> Grid:
    """A workgroup for each row."""
    return int(params["rows"]), 1, 1


def outs_by_rows(params: Params, tile: Constants) -> Grid:
    """TILE_N matrix rows by TILE_T rows."""
    return ceil_div(int(params["outs"]), tile["TILE_N"]), ceil_div(int(params["rows"]), tile["TILE_T"]), 1


def outs_by_rows_split(params: Params, tile: Constants) -> Grid:
    """TILE_N matrix rows by TILE_T rows; SPLITS groups share the columns of a tile."""
    return ceil_div(int(params["outs"]), tile["TILE_N"]), ceil_div(int(params["rows"]), tile["TILE_T"]), tile["SPLITS"]


def per_row_split(params: Params, tile: Constants) -> Grid:
    """SPLITS workgroups for each row."""
    return int(params["rows"]), 1, tile["SPLITS"]


def hidden_by_rows(params: Params, tile: Constants) -> Grid:
    """TILE_N columns of a row."""
    return ceil_div(int(params["hidden"]), tile["TILE_N"]), int(params["rows"]), 1


def all_heads_by_rows(params: Params, tile: Constants) -> Grid:
    """TILE_N heads of [q | k | v] of a row."""
    return ceil_div(int(params["n_heads"]) + 2 * int(params["n_kv_heads"]), tile["TILE_N"]), int(params["rows"]), 1


def heads_by_rows(params: Params, tile: Constants) -> Grid:
    """TILE_N query heads by TILE_T rows; SPLITS groups share the positions."""
    return (
        ceil_div(int(params["n_heads"]), tile["TILE_N"]),
        ceil_div(int(params["rows"]), tile["TILE_T"]),
        tile["SPLITS"],
    )


def u32(name: str, meaning: str) -> Param:
    """A whole number."""
    return Param(name, "u32", meaning)


ROWS = u32("rows", "rows T (or L) of this launch")
EPS = Param("eps", "f32", "added to the mean square")
CACHE_BLOCK = product("n_kv_heads", "row_bytes", times=KV_BLOCK)
"""A cache holds whole blocks; which of them a launch touches stands in the block tables."""
QUANTIZED = (
    Binding("q", "i8", "w", "[rows, stride]", product("rows", "stride")),
    Binding("scale", "f32", "w", "[rows] or [rows, stride / 32]", sizes.activation_scales("stride")),
    Binding("qsum", "i32", "w", "[rows] or [rows, stride / 32]", sizes.activation_scales("stride")),
)
ANY = "(any buffer where {} is 0)"
ABLOCKS = (0, 32, 128)
"""Columns that share an activation scale; 0: a row."""
BLOCKS = (64, 128, 256)
"""Columns that share a weight scale, where a row has several."""
HEAD_GAMMAS = (
    Binding("q_gamma", "f32", "r", f"[head_dim] {ANY.format('QKNORM')}", sizes.where("QKNORM", product("head_dim"))),
    Binding("k_gamma", "f32", "r", f"[head_dim] {ANY.format('QKNORM')}", sizes.where("QKNORM", product("head_dim"))),
)
"""Of rms_norm for each head."""
MATMUL_PARAMS = (
    ROWS,
    u32("outs", "matrix rows N"),
    u32("width", "matrix columns, padded to 128"),
    u32("y_stride", "elements between rows of y"),
    u32("y_first", "column of y for matrix row 0"),
)
