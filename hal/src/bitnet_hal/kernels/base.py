"""The kernels that every device must offer, and top_k; `bitnet_hal.kernels.conventions` explains the notation."""

from __future__ import annotations

from bitnet_hal.kernels import sizes
from bitnet_hal.kernels.params import (
    ACT_GROUP_SIZES,
    ANY,
    CACHE_BLOCK,
    DENSE_TYPES,
    EPS,
    HEAD_GAMMAS,
    MATMUL_PARAMS,
    QUANTIZED,
    RELU2,
    ROWS,
    SILU,
    STEP_FIELDS,
    WEIGHT_GROUP_SIZES,
    all_heads_by_rows,
    heads_by_rows,
    hidden_by_rows,
    outs_by_rows,
    outs_by_rows_split,
    per_row,
    per_row_split,
    u32,
)
from bitnet_hal.kernels.sizes import product
from bitnet_hal.kernels.spec import Binding, KernelSpec, Param

EMBED_ROWS = KernelSpec(
    name="embed_rows",
    meaning="x[t, :] = table[token[t] - first, :] for rows with first <= token[t] < first + count; the other rows of x "
    "are not written, so that several launches can cover a table that is larger than one binding.",
    bindings=(
        Binding("table", "u8", "r", "[count, hidden] of type DTYPE", sizes.dense_rows(DENSE_TYPES, "count", "hidden")),
        Binding("step", "i32", "r", "[rows, 4]", product("rows", times=STEP_FIELDS)),
        Binding("x", "f32", "rw", "[rows, hidden]", product("rows", "hidden")),
    ),
    params=(ROWS, u32("hidden", "columns H"), u32("first", "token of table row 0"), u32("count", "table rows")),
    constants={"DTYPE": (0, 1, 2, 3, 4)},
    tuning=("TILE_N",),
    grid=hidden_by_rows,
)

RMS_NORM_QUANTIZE = KernelSpec(
    name="rms_norm_quantize",
    meaning="y = x / sqrt(mean(x^2) + eps) * gamma if NORM is 1, else y = x; then each row of y is quantized.",
    bindings=(
        Binding("x", "f32", "r", "[rows, width]", product("rows", "width")),
        Binding("gamma", "f32", "r", f"[width] {ANY.format('NORM')}", sizes.where("NORM", product("width"))),
        *QUANTIZED,
    ),
    params=(ROWS, u32("width", "columns"), u32("stride", "columns of q: width padded to 128"), EPS),
    constants={"NORM": (0, 1), "ABLOCK": ACT_GROUP_SIZES},
    grid=per_row,
)

MATMUL_TERNARY = KernelSpec(
    name="matmul_ternary",
    meaning="y[t, y_first + n] (+)= (sum_k code[n, k] * q[t, k] - qsum[t]) * scale[t] * wscale[n]. The sum is an exact 32-bit "
    "integer, converted to f32 and multiplied in this order.",
    bindings=(
        Binding("w", "u8", "r", "[outs, width / 4]", sizes.ternary_rows()),
        Binding("wscale", "f32", "r", "[outs]", product("outs")),
        Binding("q", "i8", "r", "[rows, width]", product("rows", "width")),
        Binding("scale", "f32", "r", "[rows]", product("rows")),
        Binding("qsum", "i32", "r", "[rows]", product("rows")),
        Binding("y", "f32", "rw", "[rows, y_stride]", sizes.output),
    ),
    params=MATMUL_PARAMS,
    constants={"ADD": (0, 1)},
    tuning=("TILE_N", "TILE_T", "SPLITS"),
    grid=outs_by_rows_split,
)

MATMUL_TERNARY_BLOCK = KernelSpec(
    name="matmul_ternary_block",
    meaning="y[t, y_first + n] (+)= sum_b wscale[n, b] * (sum over group b of (code[n, k] - 1) * q[t, k]) * scale[t]: "
    "one weight scale for each BLOCK columns; the last group ends at width. If ABLOCK is not 0, each group a of 32 "
    "columns has an activation scale: y[t, y_first + n] (+)= sum_a wscale[n, 32 a / BLOCK] * scale[t, a] * (sum over "
    "group a of (code[n, k] - 1) * q[t, k]). The inner sums are exact integers; the sum of (code - 1) * q may be "
    "computed as the sum of code * q minus the sum of q, which is qsum[t, a] if ABLOCK is not 0.",
    bindings=(
        Binding("w", "u8", "r", "[outs, width / 4]", sizes.ternary_rows()),
        Binding("wscale", "f32", "r", "[outs, ceil(width / BLOCK)]", sizes.group_scales()),
        Binding("q", "i8", "r", "[rows, width]", product("rows", "width")),
        Binding("scale", "f32", "r", "[rows] or [rows, width / 32]", sizes.activation_scales("width")),
        Binding("qsum", "i32", "r", "[rows] or [rows, width / 32]", sizes.activation_scales("width")),
        Binding("y", "f32", "rw", "[rows, y_stride]", sizes.output),
    ),
    params=MATMUL_PARAMS,
    constants={"ADD": (0, 1), "BLOCK": WEIGHT_GROUP_SIZES, "ABLOCK": ACT_GROUP_SIZES},
    tuning=("TILE_N", "TILE_T", "SPLITS"),
    grid=outs_by_rows_split,
)

ROPE_STORE_KV = KernelSpec(
    name="rope_store_kv",
    meaning="Rotates the query and key heads of qkv = [q | k | v] by (cos, sin) = rope[max(position, 0), j], pair j being "
    "(j, j + D/2), or (2j, 2j + 1) if INTERLEAVED is 1: (a, b) -> (a cos - b sin, b cos + a sin). If QKNORM is 1, each "
    "of these heads h is first normed: h / sqrt(mean(h^2) + eps) * gamma, with q_gamma for queries and k_gamma for "
    "keys. Writes the rotated queries to q, and the rotated keys and the unchanged v to the caches at slot[t]. Rows "
    "with position < 0 or slot < 0 write nothing to the caches.",
    bindings=(
        Binding("qkv", "f32", "r", "[rows, (n_heads + 2 n_kv_heads) * head_dim]", sizes.query_key_value),
        Binding("step", "i32", "r", "[rows, 4]", product("rows", times=STEP_FIELDS)),
        Binding("rope", "f32", "r", "[positions, head_dim / 2, 2]", product("head_dim")),
        *HEAD_GAMMAS,
        Binding("q", "f32", "w", "[rows, n_heads * head_dim]", product("rows", "n_heads", "head_dim")),
        Binding("k_cache", "u8", "rw", "cache rows", CACHE_BLOCK),
        Binding("v_cache", "u8", "rw", "cache rows", CACHE_BLOCK),
    ),
    params=(
        ROWS,
        u32("n_heads", "query heads"),
        u32("n_kv_heads", "key/value heads"),
        u32("head_dim", "elements of a head, even"),
        u32("row_bytes", "bytes of a cache row"),
        EPS,
    ),
    constants={"KV": (0, 1, 2), "INTERLEAVED": (0, 1), "QKNORM": (0, 1)},
    tuning=("TILE_N",),
    grid=all_heads_by_rows,
)

ATTENTION = KernelSpec(
    name="attention",
    meaning="out[t, h] = sum_p softmax_p(scale * q[t, h] . k[p]) v[p] over positions p = 0..position[t] of the row's own "
    "sequence, with k[p] and v[p] from the caches at slot tables[sequence[t], p / 64] * 64 + p % 64 and key/value head "
    "h / (n_heads / n_kv_heads). softmax_p(s) = exp(s[p]) / sum_p exp(s[p]), without overflow. "
    "out is 0 in rows with position < 0.",
    bindings=(
        Binding("q", "f32", "r", "[rows, n_heads * head_dim]", product("rows", "n_heads", "head_dim")),
        Binding("k_cache", "u8", "r", "cache rows", CACHE_BLOCK),
        Binding("v_cache", "u8", "r", "cache rows", CACHE_BLOCK),
        Binding("step", "i32", "r", "[rows, 4]", product("rows", times=STEP_FIELDS)),
        Binding("tables", "i32", "r", "[sequences, max_blocks]", product("max_blocks")),
        Binding("out", "f32", "w", "[rows, n_heads * head_dim]", product("rows", "n_heads", "head_dim")),
    ),
    params=(
        ROWS,
        u32("n_heads", "query heads"),
        u32("n_kv_heads", "key/value heads"),
        u32("head_dim", "elements of a head"),
        u32("row_bytes", "bytes of a cache row"),
        u32("max_blocks", "columns of tables"),
        Param("scale", "f32", "1 / sqrt(head_dim)"),
    ),
    constants={"KV": (0, 1, 2)},
    tuning=("TILE_N", "TILE_T", "SPLITS"),
    grid=heads_by_rows,
)

GLU_NORM_QUANTIZE = KernelSpec(
    name="glu_norm_quantize",
    meaning="m = act(gate) * up with gate_up = [gate | up], act(z) = max(z, 0)^2 (ACT 0) or z / (1 + exp(-z)) (ACT 1), "
    "in f32 (m overflows f16); y = m / sqrt(mean(m^2) + eps) * gamma if NORM is 1, else y = m; then each row of "
    "y is quantized.",
    bindings=(
        Binding("gate_up", "f32", "r", "[rows, 2 * width]", product("rows", "width", times=2)),
        Binding("gamma", "f32", "r", f"[width] {ANY.format('NORM')}", sizes.where("NORM", product("width"))),
        *QUANTIZED,
    ),
    params=(ROWS, u32("width", "columns F"), u32("stride", "columns of q: width padded to 128"), EPS),
    constants={"ACT": (RELU2, SILU), "NORM": (0, 1), "ABLOCK": ACT_GROUP_SIZES},
    grid=per_row,
)

RMS_NORM = KernelSpec(
    name="rms_norm",
    meaning="y[l, :] = x[r, :] / sqrt(mean(x[r]^2) + eps) * gamma with r = index[l]: the final norm of the rows that "
    "need logits.",
    bindings=(
        Binding("x", "f32", "r", "[*, width]", product("width")),
        Binding("index", "i32", "r", "[rows]", product("rows")),
        Binding("gamma", "f32", "r", "[width]", product("width")),
        Binding("y", "f32", "w", "[rows, width]", product("rows", "width")),
    ),
    params=(ROWS, u32("width", "columns"), EPS),
    grid=per_row,
)

MATMUL_DENSE = KernelSpec(
    name="matmul_dense",
    meaning="y[l, y_first + n] = sum_k x[l, k] * w[n, k], with sums in f32 and w of type DTYPE: the logits of an output head, "
    "whose matrix may be that of the embedding.",
    bindings=(
        Binding("x", "f32", "r", "[rows, width]", product("rows", "width")),
        Binding("w", "u8", "r", "[outs, width] of type DTYPE", sizes.dense_rows(DENSE_TYPES, "outs", "width")),
        Binding("y", "f32", "rw", "[rows, y_stride]", sizes.output),
    ),
    params=(
        ROWS,
        u32("outs", "matrix rows N"),
        u32("width", "columns"),
        u32("y_stride", "elements between rows of y"),
        u32("y_first", "column of y for matrix row 0"),
    ),
    constants={"DTYPE": (0, 1, 2, 3, 4)},
    tuning=("TILE_N", "TILE_T"),
    grid=outs_by_rows,
)

LOGITS = Binding("logits", "f32", "r", "[rows, stride]", sizes.strided_rows("vocab"))
MASK = Binding(
    "mask", "i32", "r", f"[rows, ceil(vocab / 32)] {ANY.format('MASK')}", sizes.where("MASK", sizes.mask_words)
)
CHOICE = (
    ROWS,
    u32("vocab", "tokens V; the kernel ignores logits of higher ids"),
    u32("stride", "elements between rows of logits"),
)

ARGMAX_ADVANCE = KernelSpec(
    name="argmax_advance",
    meaning="For each l with r = index[l] and position[r] >= 0: token = the index of the largest logit, the lowest of "
    "equal ones, among the allowed tokens if MASK is 1 (-1 if one of these logits is NaN, or no token is allowed). Then "
    "history[r, 0] += 1; history[r, history[r, 0]] = token if that count is <= ring; step[r] = (token, position + 1, "
    "slot of position + 1, sequence). The row becomes unused, with position = slot = -1, if token is -1, if "
    "(position + 1) / 64 >= max_blocks, or if the entry of tables there is < 0. So the next replay needs no data from "
    "the host.",
    bindings=(
        LOGITS,
        MASK,
        Binding("index", "i32", "r", "[rows]", product("rows")),
        Binding("tables", "i32", "r", "[sequences, max_blocks]", product("max_blocks")),
        Binding("step", "i32", "rw", "[*, 4]", product(times=STEP_FIELDS)),
        Binding("history", "i32", "rw", "[*, ring + 1]", sizes.history),
    ),
    params=(
        *CHOICE,
        u32("max_blocks", "columns of tables"),
        u32("ring", "capacity of a row of history, in tokens"),
    ),
    constants={"MASK": (0, 1)},
    tuning=("SPLITS",),
    grid=per_row_split,
)

EMBED_ROWS_TERNARY = KernelSpec(
    name="embed_rows_ternary",
    meaning="embed_rows for a ternary table: x[t, k] = (code[token[t] - first, k] - 1) * wscale[token[t] - first, k / BLOCK].",
    bindings=(
        Binding("w", "u8", "r", "[count, width / 4]", sizes.ternary_rows(rows="count")),
        Binding("wscale", "f32", "r", "[count, ceil(width / BLOCK)]", sizes.group_scales(rows="count")),
        Binding("step", "i32", "r", "[rows, 4]", product("rows", times=STEP_FIELDS)),
        Binding("x", "f32", "rw", "[rows, hidden]", product("rows", "hidden")),
    ),
    params=(
        ROWS,
        u32("hidden", "columns H"),
        u32("width", "columns padded to 128"),
        u32("first", "token of table row 0"),
        u32("count", "table rows"),
    ),
    constants={"BLOCK": WEIGHT_GROUP_SIZES},
    tuning=("TILE_N",),
    grid=hidden_by_rows,
)

TOP_K = KernelSpec(
    name="top_k",
    meaning="ids[l, i], values[l, i] = the k largest logits of row l, among the allowed tokens if MASK is 1, in descending "
    "order, equal logits by ascending id; NaN counts as the largest; if fewer than k are allowed, id -1 and value -Inf fill the "
    "rest. total[l] = (max, log(sum exp(logit - max))) over all allowed logits, both NaN if one of them is NaN. With "
    "these the host samples from k logits instead of V, with exact probabilities.",
    bindings=(
        LOGITS,
        MASK,
        Binding("ids", "i32", "w", "[rows, k]", product("rows", "k")),
        Binding("values", "f32", "w", "[rows, k]", product("rows", "k")),
        Binding("total", "f32", "w", "[rows, 2]", product("rows", times=2)),
    ),
    params=(*CHOICE, u32("k", "1..256, at most vocab")),
    constants={"MASK": (0, 1)},
    tuning=("SPLITS",),
    grid=per_row_split,
    base=False,
)
