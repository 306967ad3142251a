"""The optional kernels that models with gated delta nets and rotated weights need (Qwen3.5, Bonsai 2).

Sources of the formulas: Yang et al. 2024 (arXiv 2412.06464) for the delta rule, Dao's causal-conv1d for the
convolution, llama.cpp's src/models/qwen35.cpp for their combination in Qwen3.5.
"""

from __future__ import annotations

from bitnet_hal.kernels import sizes
from bitnet_hal.kernels.params import ANY, EPS, RELU2, ROWS, SIGMOID, SILU, STEP_FIELDS, per_row, u32
from bitnet_hal.kernels.sizes import product
from bitnet_hal.kernels.spec import Binding, Constants, KernelSpec, Params
from bitnet_hal.kernels.types import Grid
from bitnet_hal.rounding import ceil_div

STEP = Binding("step", "i32", "r", "[rows, 4]", product("rows", times=STEP_FIELDS))


def _blocks_by_rows(params: Params, tile: Constants) -> Grid:
    """Return one workgroup for each block of a row."""
    return int(params["width"]) // int(params["block"]), int(params["rows"]), 1


def _heads_by_rows(params: Params, tile: Constants) -> Grid:
    """Return one workgroup for each head of a row."""
    return int(params["n_heads"]), int(params["rows"]), 1


def _channels(params: Params, tile: Constants) -> Grid:
    """Return one workgroup for TILE_N channels, which processes all rows in order."""
    return ceil_div(int(params["channels"]), tile["TILE_N"]), 1, 1


def _heads_by_columns(params: Params, tile: Constants) -> Grid:
    """Return one workgroup for TILE_N columns of a head's state, which processes all rows in order."""
    return int(params["n_heads"]), ceil_div(int(params["value_dim"]), tile["TILE_N"]), 1


def _mixed(params: Params, constants: Constants) -> int:
    """Return the elements of [q | k | v] of every row."""
    heads, groups = int(params["n_heads"]), int(params["n_key_heads"])
    return int(params["rows"]) * (2 * groups * int(params["key_dim"]) + heads * int(params["value_dim"]))


def _inputs(params: Params, constants: Constants) -> int:
    """Return the elements of one sequence's state; `step` determines the sequences that a launch touches."""
    return (int(params["taps"]) - 1) * int(params["channels"])


HADAMARD_ROTATE = KernelSpec(
    name="hadamard_rotate",
    meaning="y[t] = rotate(signs * x[t]), or signs * rotate(x[t]) if INVERSE is 1. rotate(z)[i] = sum_j "
    "(-1)^popcount(i & j) / sqrt(block) * z[j] for each group of `block` columns, i and j counted from its first "
    "column: the normalized Walsh-Hadamard transform in Sylvester's order, which is its own inverse.",
    bindings=(
        Binding("x", "f32", "r", "[rows, width]", product("rows", "width")),
        Binding("signs", "f32", "r", "[width]", product("width")),
        Binding("y", "f32", "w", "[rows, width]", product("rows", "width")),
    ),
    params=(ROWS, u32("width", "columns, a multiple of block"), u32("block", "a power of two, 2..16384")),
    constants={"INVERSE": (0, 1)},
    grid=_blocks_by_rows,
    base=False,
)

GLU = KernelSpec(
    name="glu",
    meaning="m = act(gate) * up with gate_up = [gate | up] and act as in glu_norm_quantize, in f32 and without a "
    "norm. In models with rotated weights, hadamard_rotate reads m.",
    bindings=(
        Binding("gate_up", "f32", "r", "[rows, 2 * width]", product("rows", "width", times=2)),
        Binding("m", "f32", "w", "[rows, width]", product("rows", "width")),
    ),
    params=(ROWS, u32("width", "columns F")),
    constants={"ACT": (RELU2, SILU)},
    grid=per_row,
    base=False,
)

CAUSAL_CONV1D = KernelSpec(
    name="causal_conv1d",
    meaning="y[t, c] = silu(sum_j weight[c, j] * x[t - taps + 1 + j, c]), silu(a) = a / (1 + exp(-a)), over the "
    "inputs of the row's own sequence: rows before the first one in the step are those of state[sequence], oldest "
    "first, or zeros before position 0. Afterwards state[sequence] holds the last taps - 1 inputs. Rows with position "
    "< 0 get y = 0 and change no state.",
    bindings=(
        Binding("x", "f32", "r", "[rows, channels]", product("rows", "channels")),
        STEP,
        Binding("weight", "f32", "r", "[channels, taps]", product("channels", "taps")),
        Binding("state", "f32", "rw", "[sequences, taps - 1, channels]", _inputs),
        Binding("y", "f32", "w", "[rows, channels]", product("rows", "channels")),
    ),
    params=(ROWS, u32("channels", "columns"), u32("taps", "filter length, 2..64")),
    tuning=("TILE_N",),
    grid=_channels,
    base=False,
)

GATED_DELTA_RULE = KernelSpec(
    name="gated_delta_rule",
    meaning="For each row in order and each value head h, with qkv = [q | k | v] and q and k of key head "
    "h % n_key_heads: q = q / sqrt(|q|^2 + eps) / sqrt(key_dim), k = k / sqrt(|k|^2 + eps); with gates = [a | b] the "
    "decay is g = exp(rate[h] * softplus(a[h] + dt[h])), softplus(z) = log(1 + exp(z)), and beta = 1 / (1 + "
    "exp(-b[h])). Then with s = state[sequence, h], zeros at position 0: s = g * s; u = v - k . s, that is u[j] = "
    "v[j] - sum_i k[i] * s[i, j]; s[i, j] = s[i, j] + k[i] * beta * u[j]; out[t, h, j] = sum_i q[i] * s[i, j]. "
    "Rows with position < 0 get out = 0 and change no state.",
    bindings=(
        Binding("qkv", "f32", "r", "[rows, 2 * n_key_heads * key_dim + n_heads * value_dim]", _mixed),
        Binding("gates", "f32", "r", "[rows, 2 * n_heads]", product("rows", "n_heads", times=2)),
        Binding("rate", "f32", "r", "[n_heads], negative", product("n_heads")),
        Binding("dt", "f32", "r", "[n_heads]", product("n_heads")),
        STEP,
        Binding(
            *("state", "f32", "rw", "[sequences, n_heads, key_dim, value_dim]"),
            product("n_heads", "key_dim", "value_dim"),
        ),
        Binding("out", "f32", "w", "[rows, n_heads * value_dim]", product("rows", "n_heads", "value_dim")),
    ),
    params=(
        ROWS,
        u32("n_heads", "value heads, a multiple of n_key_heads"),
        u32("n_key_heads", "key heads, and query heads"),
        u32("key_dim", "elements of a key, 1..1024"),
        u32("value_dim", "elements of a value, 1..1024"),
        EPS,
    ),
    tuning=("TILE_N",),
    grid=_heads_by_columns,
    base=False,
)

GATED_RMS_NORM = KernelSpec(
    name="gated_rms_norm",
    meaning="y[t, h'] = x[t, h] / sqrt(mean(x[t, h]^2) + eps) * gamma * act(gate[t, h]) for each head h, without the "
    "norm if NORM is 0; act(a) = a / (1 + exp(-a)) (ACT 1) or 1 / (1 + exp(-a)) (ACT 2); h' = h % groups * "
    "(n_heads / groups) + h / groups: the order of heads is unchanged if groups is 1.",
    bindings=(
        Binding("x", "f32", "r", "[rows, n_heads * head_dim]", product("rows", "n_heads", "head_dim")),
        Binding("gate", "f32", "r", "[rows, n_heads * head_dim]", product("rows", "n_heads", "head_dim")),
        Binding("gamma", "f32", "r", f"[head_dim] {ANY.format('NORM')}", sizes.where("NORM", product("head_dim"))),
        Binding("y", "f32", "w", "[rows, n_heads * head_dim]", product("rows", "n_heads", "head_dim")),
    ),
    params=(
        ROWS,
        u32("n_heads", "heads"),
        u32("head_dim", "elements of a head"),
        u32("groups", "a divisor of n_heads"),
        EPS,
    ),
    constants={"NORM": (0, 1), "ACT": (SILU, SIGMOID)},
    grid=_heads_by_rows,
    base=False,
)
