"""The kernel catalogue: every kernel a device can offer, what it means, and its grid.

Letters: T rows of this step (one row = one token of one sequence), L rows whose logits are wanted, H hidden width,
K columns and N rows of a matrix, F feed-forward width, V vocabulary, D head_dim, S sequences, B blocks of a sequence.

**step** is i32[T, 4]: token, position, slot, sequence of each row. Position -1 marks an unused row: kernels write
nothing to caches for it. A slot is block * 64 + offset in the paged cache.

**Caches** hold one row per slot and key/value head: byte address of (slot, head) =
((slot / 64 * n_kv_heads + head) * 64 + slot % 64) * row_bytes. KV = 0: f32[D]; KV = 1: f16[D]; KV = 2: one f32 scale,
then i8[D] (value = code * scale, scale = absmax / 127, 0 for an all-zero row), row_bytes rounded up to 4, the padding 0.

**Quantized activations** are q i8[T, stride], scale f32[T], qsum i32[T], after BitNet b1.58 (absmax per token):
a = max(max|y|, 1e-5), q = clip(round_half_even(y * (127 / a)), -128, 127), scale = a / 127, qsum = sum of q; columns
width..stride-1 of q are 0. A row that holds a NaN or Inf, or whose sum of squares overflows, gets scale = NaN, q = 0,
qsum = 0, so that it cannot pass for an answer.

**Ternary weights** are I2_S 128-blocks: byte p of a 32-byte block holds columns p (bits 7-6), 32+p (5-4), 64+p (3-2),
96+p (1-0); code 0, 1, 2 means -1, 0, +1. `width` is K rounded up to 128; any code may fill the rest, where q is 0.

**Dense tables**: DTYPE 0 f32, 1 f16, 2 bf16, 3 q8_0 (32 elements: f16 d, i8[32]), 4 q6_K (256 elements, 210 bytes).

Sums of a ternary product are exact integers (so all devices agree); everything else is f32.
"""

from __future__ import annotations

from bitnet_core.hal.device import Grid
from bitnet_core.kernels import sizes
from bitnet_core.kernels.sizes import product
from bitnet_core.kernels.spec import Binding, Constants, KernelSpec, Param, Params
from bitnet_core.model.weights import DenseType

KV_BLOCK = 64
"""Cache slots of one block."""

KV_TYPES = ("f32", "f16", "int8")
DENSE_TYPES: tuple[DenseType, ...] = ("f32", "f16", "bf16", "q8_0", "q6_K")
RELU2, SILU = 0, 1
STEP_FIELDS = 4
"""i32 values of one row of the step buffer."""


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def kv_row_bytes(kv: int, head_dim: int) -> int:
    """Bytes of one cache row of one key/value head; kv indexes KV_TYPES."""
    return (4 * head_dim, 2 * head_dim, 4 + ceil_div(head_dim, 4) * 4)[kv]


def _per_row(params: Params, tuning: Constants) -> Grid:
    return int(params["rows"]), 1, 1


def _outs_by_rows(params: Params, tuning: Constants) -> Grid:
    return ceil_div(int(params["outs"]), tuning["TILE_N"]), ceil_div(int(params["rows"]), tuning["TILE_T"]), 1


def _hidden_by_rows(params: Params, tuning: Constants) -> Grid:
    return ceil_div(int(params["hidden"]), tuning["TILE_N"]), int(params["rows"]), 1


def _all_heads_by_rows(params: Params, tuning: Constants) -> Grid:
    return int(params["n_heads"]) + 2 * int(params["n_kv_heads"]), int(params["rows"]), 1


def _heads_by_rows(params: Params, tuning: Constants) -> Grid:
    return ceil_div(int(params["n_heads"]), tuning["TILE_N"]), ceil_div(int(params["rows"]), tuning["TILE_T"]), 1


def _u32(name: str, meaning: str) -> Param:
    return Param(name, "u32", meaning)


_ROWS = _u32("rows", "rows T (or L) of this launch")
_EPS = Param("eps", "f32", "added to the mean square")
_CACHE_BLOCK = product("n_kv_heads", "row_bytes", times=KV_BLOCK)
"""A cache holds whole blocks; which of them a launch touches stands in the block tables."""
_QUANTIZED = (
    Binding("q", "i8", "w", "[rows, stride]", product("rows", "stride")),
    Binding("scale", "f32", "w", "[rows]", product("rows")),
    Binding("qsum", "i32", "w", "[rows]", product("rows")),
)
_MATMUL_PARAMS = (
    _ROWS,
    _u32("outs", "matrix rows N"),
    _u32("width", "matrix columns, padded to 128"),
    _u32("y_stride", "elements between rows of y"),
    _u32("y_first", "column of y for matrix row 0"),
)

EMBED_ROWS = KernelSpec(
    name="embed_rows",
    meaning="x[t, :] = table[token[t] - first, :] for rows with first <= token[t] < first + count; other rows of x are "
    "left alone, so that a table may be bound in several parts.",
    bindings=(
        Binding("table", "u8", "r", "count rows of DTYPE", sizes.dense_rows(DENSE_TYPES, "count", "hidden")),
        Binding("step", "i32", "r", "[rows, 4]", product("rows", times=STEP_FIELDS)),
        Binding("x", "f32", "rw", "[rows, hidden]", product("rows", "hidden")),
    ),
    params=(_ROWS, _u32("hidden", "columns H"), _u32("first", "token of table row 0"), _u32("count", "table rows")),
    constants={"DTYPE": (0, 1, 2, 3, 4)},
    tuning=("TILE_N",),
    grid=_hidden_by_rows,
)

RMS_NORM_QUANTIZE = KernelSpec(
    name="rms_norm_quantize",
    meaning="y = x / sqrt(mean(x^2) + eps) * gamma where NORM is 1, y = x where it is 0; then y is quantized per row.",
    bindings=(
        Binding("x", "f32", "r", "[rows, width]", product("rows", "width")),
        Binding("gamma", "f32", "r", "[width] (any buffer where NORM is 0)", sizes.where_norm(product("width"))),
        *_QUANTIZED,
    ),
    params=(_ROWS, _u32("width", "columns"), _u32("stride", "columns of q: width padded to 128"), _EPS),
    constants={"NORM": (0, 1)},
    grid=_per_row,
)

MATMUL_TERNARY = KernelSpec(
    name="matmul_ternary",
    meaning="y[t, y_first + n] (+)= (sum_k code[n, k] * q[t, k] - qsum[t]) * scale[t] * wscale[n], the sum exact in 32-bit "
    "integers, the products in this order; added to y where ADD is 1.",
    bindings=(
        Binding("w", "u8", "r", "[outs, width / 4]", sizes.ternary_rows()),
        Binding("wscale", "f32", "r", "[outs]", product("outs")),
        Binding("q", "i8", "r", "[rows, width]", product("rows", "width")),
        Binding("scale", "f32", "r", "[rows]", product("rows")),
        Binding("qsum", "i32", "r", "[rows]", product("rows")),
        Binding("y", "f32", "rw", "[rows, y_stride]", sizes.output),
    ),
    params=_MATMUL_PARAMS,
    constants={"ADD": (0, 1)},
    tuning=("TILE_N", "TILE_T"),
    grid=_outs_by_rows,
)

MATMUL_TERNARY_BLOCK = KernelSpec(
    name="matmul_ternary_block",
    meaning="y[t, y_first + n] (+)= scale[t] * sum_b wscale[n, b] * (sum over block b of (code[n, k] - 1) * q[t, k]): "
    "weights whose scales differ from block to block (BLOCK columns each). The inner sums are exact integers.",
    bindings=(
        Binding("w", "u8", "r", "[outs, width / 4]", sizes.ternary_rows()),
        Binding("wscale", "f32", "r", "[outs, ceil(width / BLOCK)]", sizes.block_scales),
        Binding("q", "i8", "r", "[rows, width]", product("rows", "width")),
        Binding("scale", "f32", "r", "[rows]", product("rows")),
        Binding("y", "f32", "rw", "[rows, y_stride]", sizes.output),
    ),
    params=_MATMUL_PARAMS,
    constants={"ADD": (0, 1), "BLOCK": (64, 128, 256)},
    tuning=("TILE_N", "TILE_T"),
    grid=_outs_by_rows,
)

ROPE_STORE_KV = KernelSpec(
    name="rope_store_kv",
    meaning="Rotates the query and key heads of qkv = [q | k | v] by (cos, sin) = rope[position], pair j being (j, j + D/2), "
    "or (2j, 2j + 1) where INTERLEAVED is 1: (a, b) -> (a cos - b sin, b cos + a sin). Writes q, and k and v (not "
    "rotated) into the caches at the row's slot. Rows with position < 0 or slot < 0 store nothing.",
    bindings=(
        Binding("qkv", "f32", "r", "[rows, (n_heads + 2 n_kv_heads) * head_dim]", sizes.query_key_value),
        Binding("step", "i32", "r", "[rows, 4]", product("rows", times=STEP_FIELDS)),
        Binding("rope", "f32", "r", "[positions, head_dim / 2, 2]", product("head_dim")),
        Binding("q", "f32", "w", "[rows, n_heads * head_dim]", product("rows", "n_heads", "head_dim")),
        Binding("k_cache", "u8", "rw", "cache rows", _CACHE_BLOCK),
        Binding("v_cache", "u8", "rw", "cache rows", _CACHE_BLOCK),
    ),
    params=(
        _ROWS,
        _u32("n_heads", "query heads"),
        _u32("n_kv_heads", "key/value heads"),
        _u32("head_dim", "elements of a head, even"),
        _u32("row_bytes", "bytes of a cache row"),
    ),
    constants={"KV": (0, 1, 2), "INTERLEAVED": (0, 1)},
    grid=_all_heads_by_rows,
)

ATTENTION = KernelSpec(
    name="attention",
    meaning="out[t, h] = sum_p softmax_p(scale * q[t, h] . k[p]) v[p] over positions p = 0..position[t] of the row's own "
    "sequence; slot of p = tables[sequence, p / 64] * 64 + p % 64; key/value head = h / (n_heads / n_kv_heads). "
    "Rows with position < 0 give zeros.",
    bindings=(
        Binding("q", "f32", "r", "[rows, n_heads * head_dim]", product("rows", "n_heads", "head_dim")),
        Binding("k_cache", "u8", "r", "cache rows", _CACHE_BLOCK),
        Binding("v_cache", "u8", "r", "cache rows", _CACHE_BLOCK),
        Binding("step", "i32", "r", "[rows, 4]", product("rows", times=STEP_FIELDS)),
        Binding("tables", "i32", "r", "[sequences, max_blocks]", product("max_blocks")),
        Binding("out", "f32", "w", "[rows, n_heads * head_dim]", product("rows", "n_heads", "head_dim")),
    ),
    params=(
        _ROWS,
        _u32("n_heads", "query heads"),
        _u32("n_kv_heads", "key/value heads"),
        _u32("head_dim", "elements of a head"),
        _u32("row_bytes", "bytes of a cache row"),
        _u32("max_blocks", "columns of tables"),
        Param("scale", "f32", "1 / sqrt(head_dim)"),
    ),
    constants={"KV": (0, 1, 2)},
    tuning=("TILE_N", "TILE_T"),
    grid=_heads_by_rows,
)

GLU_NORM_QUANTIZE = KernelSpec(
    name="glu_norm_quantize",
    meaning="m = act(gate) * up with gate_up = [gate | up], act = max(g, 0)^2 (ACT 0) or g / (1 + exp(-g)) (ACT 1), always "
    "in f32 (it overflows f16); y = m / sqrt(mean(m^2) + eps) * gamma where NORM is 1, else m; then y is quantized "
    "per row.",
    bindings=(
        Binding("gate_up", "f32", "r", "[rows, 2 * width]", product("rows", "width", times=2)),
        Binding("gamma", "f32", "r", "[width] (any buffer where NORM is 0)", sizes.where_norm(product("width"))),
        *_QUANTIZED,
    ),
    params=(_ROWS, _u32("width", "columns F"), _u32("stride", "columns of q: width padded to 128"), _EPS),
    constants={"ACT": (RELU2, SILU), "NORM": (0, 1)},
    grid=_per_row,
)

RMS_NORM = KernelSpec(
    name="rms_norm",
    meaning="y[l, :] = x[r, :] / sqrt(mean(x[r]^2) + eps) * gamma with r = index[l]: the final norm of the rows whose "
    "logits are wanted.",
    bindings=(
        Binding("x", "f32", "r", "[*, width]", product("width")),
        Binding("index", "i32", "r", "[rows]", product("rows")),
        Binding("gamma", "f32", "r", "[width]", product("width")),
        Binding("y", "f32", "w", "[rows, width]", product("rows", "width")),
    ),
    params=(_ROWS, _u32("width", "columns"), _EPS),
    grid=_per_row,
)

MATMUL_DENSE = KernelSpec(
    name="matmul_dense",
    meaning="y[l, y_first + n] = sum_k x[l, k] * w[n, k], f32 sums, w of DTYPE: logits against the embedding or head.",
    bindings=(
        Binding("x", "f32", "r", "[rows, width]", product("rows", "width")),
        Binding("w", "u8", "r", "outs rows of DTYPE", sizes.dense_rows(DENSE_TYPES, "outs", "width")),
        Binding("y", "f32", "rw", "[rows, y_stride]", sizes.output),
    ),
    params=(
        _ROWS,
        _u32("outs", "matrix rows N"),
        _u32("width", "columns"),
        _u32("y_stride", "elements between rows of y"),
        _u32("y_first", "column of y for matrix row 0"),
    ),
    constants={"DTYPE": (0, 1, 2, 3, 4)},
    tuning=("TILE_N", "TILE_T"),
    grid=_outs_by_rows,
)

ARGMAX_ADVANCE = KernelSpec(
    name="argmax_advance",
    meaning="For each l with r = index[l] and position[r] >= 0: token = the lowest index of the largest logit (-1 if any "
    "logit is NaN); history[r, 0] += 1 and history[r, its new value] = token while it is <= ring; step[r] = (token, "
    "position + 1, slot of that position, sequence). The row becomes unused (position = slot = -1) if the token is "
    "-1 or the new position's block is >= max_blocks or its table entry is < 0. So the next replay needs no host.",
    bindings=(
        Binding("logits", "f32", "r", "[rows, vocab]", product("rows", "vocab")),
        Binding("index", "i32", "r", "[rows]", product("rows")),
        Binding("tables", "i32", "r", "[sequences, max_blocks]", product("max_blocks")),
        Binding("step", "i32", "rw", "[*, 4]", product(times=STEP_FIELDS)),
        Binding("history", "i32", "rw", "[*, ring + 1]", sizes.history),
    ),
    params=(
        _ROWS,
        _u32("vocab", "columns of logits V"),
        _u32("max_blocks", "columns of tables"),
        _u32("ring", "tokens that history has room for"),
    ),
    grid=_per_row,
)

TOP_K = KernelSpec(
    name="top_k",
    meaning="ids[l, i], values[l, i] = the k largest logits of row l in falling order, equal ones by rising index; NaN counts "
    "as the largest. Lets sampling read k pairs instead of V logits.",
    bindings=(
        Binding("logits", "f32", "r", "[rows, vocab]", product("rows", "vocab")),
        Binding("ids", "i32", "w", "[rows, k]", product("rows", "k")),
        Binding("values", "f32", "w", "[rows, k]", product("rows", "k")),
    ),
    params=(_ROWS, _u32("vocab", "columns of logits V"), _u32("k", "1..256, at most vocab")),
    grid=_per_row,
    base=False,
)

NORM_MATMUL = KernelSpec(
    name="norm_matmul",
    meaning="rms_norm_quantize of x, then matmul_ternary of what it gives: y[t, y_first + n] (+)= (sum_k code[n, k] * q[t, k] "
    "- qsum[t]) * scale[t] * wscale[n]. For a row or two, where doing the norm in every workgroup costs less than a "
    "launch of its own.",
    bindings=(
        Binding("x", "f32", "r", "[rows, columns]", product("rows", "columns")),
        Binding("gamma", "f32", "r", "[columns] (any buffer where NORM is 0)", sizes.where_norm(product("columns"))),
        Binding("w", "u8", "r", "[outs, width / 4]", sizes.ternary_rows()),
        Binding("wscale", "f32", "r", "[outs]", product("outs")),
        Binding("y", "f32", "rw", "[rows, y_stride]", sizes.output),
    ),
    params=(
        _ROWS,
        _u32("columns", "matrix columns K"),
        _u32("outs", "matrix rows N"),
        _u32("width", "columns padded to 128"),
        _u32("y_stride", "elements between rows of y"),
        _u32("y_first", "column of y for matrix row 0"),
        _EPS,
    ),
    constants={"NORM": (0, 1), "ADD": (0, 1)},
    tuning=("TILE_N", "TILE_T"),
    grid=_outs_by_rows,
    base=False,
)

NORM_MATMUL_GLU = KernelSpec(
    name="norm_matmul_glu",
    meaning="norm_matmul with the 2 outs rows of w = [gate | up], then m[t, n] = act(gate) * up as in glu_norm_quantize.",
    bindings=(
        Binding("x", "f32", "r", "[rows, columns]", product("rows", "columns")),
        Binding("gamma", "f32", "r", "[columns] (any buffer where NORM is 0)", sizes.where_norm(product("columns"))),
        Binding("w", "u8", "r", "[2 outs, width / 4]", sizes.ternary_rows(2)),
        Binding("wscale", "f32", "r", "[2 outs]", product("outs", times=2)),
        Binding("m", "f32", "w", "[rows, outs]", product("rows", "outs")),
    ),
    params=(
        _ROWS,
        _u32("columns", "matrix columns K"),
        _u32("outs", "columns F of m"),
        _u32("width", "columns padded to 128"),
        _EPS,
    ),
    constants={"NORM": (0, 1), "ACT": (RELU2, SILU)},
    tuning=("TILE_N", "TILE_T"),
    grid=_outs_by_rows,
    base=False,
)

ROPE_ATTENTION = KernelSpec(
    name="rope_attention",
    meaning="rope_store_kv, then attention of the rotated queries, for rows that all belong to different sequences: what a "
    "row stores no other row reads. Rows with position < 0 or slot < 0 store nothing and give zeros.",
    bindings=(
        Binding("qkv", "f32", "r", "[rows, (n_heads + 2 n_kv_heads) * head_dim]", sizes.query_key_value),
        Binding("step", "i32", "r", "[rows, 4]", product("rows", times=STEP_FIELDS)),
        Binding("rope", "f32", "r", "[positions, head_dim / 2, 2]", product("head_dim")),
        Binding("k_cache", "u8", "rw", "cache rows", _CACHE_BLOCK),
        Binding("v_cache", "u8", "rw", "cache rows", _CACHE_BLOCK),
        Binding("tables", "i32", "r", "[sequences, max_blocks]", product("max_blocks")),
        Binding("out", "f32", "w", "[rows, n_heads * head_dim]", product("rows", "n_heads", "head_dim")),
    ),
    params=ATTENTION.params,
    constants={"KV": (0, 1, 2), "INTERLEAVED": (0, 1)},
    tuning=("TILE_N", "TILE_T"),
    grid=_heads_by_rows,
    base=False,
)

CATALOGUE: dict[str, KernelSpec] = {
    spec.name: spec
    for spec in (
        EMBED_ROWS,
        RMS_NORM_QUANTIZE,
        MATMUL_TERNARY,
        MATMUL_TERNARY_BLOCK,
        ROPE_STORE_KV,
        ATTENTION,
        GLU_NORM_QUANTIZE,
        RMS_NORM,
        MATMUL_DENSE,
        ARGMAX_ADVANCE,
        TOP_K,
        NORM_MATMUL,
        NORM_MATMUL_GLU,
        ROPE_ATTENTION,
    )
}
"""Every kernel by name."""
