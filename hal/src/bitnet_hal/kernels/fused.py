"""Optional kernels that fuse several others into one launch, up to a whole decoder layer."""

from __future__ import annotations

from dataclasses import replace

from bitnet_hal.kernels import sizes
from bitnet_hal.kernels.base import ATTENTION
from bitnet_hal.kernels.params import (
    ACT_GROUP_SIZES,
    ANY,
    CACHE_BLOCK,
    EPS,
    HEAD_GAMMAS,
    RELU2,
    ROWS,
    SILU,
    STEP_FIELDS,
    WEIGHT_GROUP_SIZES,
    heads_by_rows,
    outs_by_rows,
    outs_by_rows_split,
    u32,
)
from bitnet_hal.kernels.sizes import product
from bitnet_hal.kernels.spec import Access, Binding, Constants, KernelSpec, Params, Size
from bitnet_hal.kernels.types import Grid
from bitnet_hal.rounding import ceil_div

SCALES = {"BLOCK": (0, *WEIGHT_GROUP_SIZES), "ABLOCK": ACT_GROUP_SIZES}
"""Constants of the scales; ABLOCK may be other than 0 only if BLOCK is."""

NORM_MATMUL = KernelSpec(
    name="norm_matmul",
    meaning="rms_norm_quantize of x, then matmul_ternary (BLOCK 0) or matmul_ternary_block of the result. For few rows: every "
    "workgroup repeats the norm, which then costs less than a separate launch.",
    bindings=(
        Binding("x", "f32", "r", "[rows, columns]", product("rows", "columns")),
        Binding("gamma", "f32", "r", f"[columns] {ANY.format('NORM')}", sizes.where("NORM", product("columns"))),
        Binding("w", "u8", "r", "[outs, width / 4]", sizes.ternary_rows()),
        Binding("wscale", "f32", "r", "[outs] or [outs, ceil(width / BLOCK)]", sizes.group_scales()),
        Binding("y", "f32", "rw", "[rows, y_stride]", sizes.output),
    ),
    params=(
        ROWS,
        u32("columns", "matrix columns K"),
        u32("outs", "matrix rows N"),
        u32("width", "columns padded to 128"),
        u32("y_stride", "elements between rows of y"),
        u32("y_first", "column of y for matrix row 0"),
        EPS,
    ),
    constants={"NORM": (0, 1), "ADD": (0, 1), **SCALES},
    tuning=("TILE_N", "TILE_T"),
    grid=outs_by_rows,
    base=False,
)

NORM_MATMUL_GLU = KernelSpec(
    name="norm_matmul_glu",
    meaning="norm_matmul with the 2 outs rows of w, gate and then up; m[t, n] = act(gate[t, n]) * up[t, n] with act as in "
    "glu_norm_quantize.",
    bindings=(
        Binding("x", "f32", "r", "[rows, columns]", product("rows", "columns")),
        Binding("gamma", "f32", "r", f"[columns] {ANY.format('NORM')}", sizes.where("NORM", product("columns"))),
        Binding("w", "u8", "r", "[2 outs, width / 4]", sizes.ternary_rows(2)),
        Binding("wscale", "f32", "r", "[2 outs] or [2 outs, ceil(width / BLOCK)]", sizes.group_scales(2)),
        Binding("m", "f32", "w", "[rows, outs]", product("rows", "outs")),
    ),
    params=(
        ROWS,
        u32("columns", "matrix columns K"),
        u32("outs", "columns F of m"),
        u32("width", "columns padded to 128"),
        EPS,
    ),
    constants={"NORM": (0, 1), "ACT": (RELU2, SILU), **SCALES},
    tuning=("TILE_N", "TILE_T"),
    grid=outs_by_rows,
    base=False,
)

MATMUL_TERNARY_GLU = KernelSpec(
    name="matmul_ternary_glu",
    meaning="matmul_ternary (BLOCK 0) or matmul_ternary_block with the 2 outs rows of w, gate and then up; m[t, n] = "
    "act(gate[t, n]) * up[t, n] with act as in glu_norm_quantize. For steps whose norm is a launch of its own: one value "
    "is written and read instead of two.",
    bindings=(
        Binding("w", "u8", "r", "[2 outs, width / 4]", sizes.ternary_rows(2)),
        Binding("wscale", "f32", "r", "[2 outs] or [2 outs, ceil(width / BLOCK)]", sizes.group_scales(2)),
        Binding("q", "i8", "r", "[rows, width]", product("rows", "width")),
        Binding("scale", "f32", "r", "[rows] or [rows, width / 32]", sizes.activation_scales("width")),
        Binding("qsum", "i32", "r", "[rows] or [rows, width / 32]", sizes.activation_scales("width")),
        Binding("m", "f32", "w", "[rows, outs]", product("rows", "outs")),
    ),
    params=(ROWS, u32("outs", "columns F of m"), u32("width", "matrix columns K, padded to 128")),
    constants={"ACT": (RELU2, SILU), **SCALES},
    tuning=("TILE_N", "TILE_T", "SPLITS"),
    grid=outs_by_rows_split,
    base=False,
)

ROPE_ATTENTION = KernelSpec(
    name="rope_attention",
    meaning="rope_store_kv, then attention of the rotated queries, for rows that all belong to different sequences, so that "
    "no row reads the keys and values of another. Rows with position < 0 or slot < 0 write nothing to the caches; their out is 0.",
    bindings=(
        Binding("qkv", "f32", "r", "[rows, (n_heads + 2 n_kv_heads) * head_dim]", sizes.query_key_value),
        Binding("step", "i32", "r", "[rows, 4]", product("rows", times=STEP_FIELDS)),
        Binding("rope", "f32", "r", "[positions, head_dim / 2, 2]", product("head_dim")),
        *HEAD_GAMMAS,
        Binding("k_cache", "u8", "rw", "cache rows", CACHE_BLOCK),
        Binding("v_cache", "u8", "rw", "cache rows", CACHE_BLOCK),
        Binding("tables", "i32", "r", "[sequences, max_blocks]", product("max_blocks")),
        Binding("out", "f32", "w", "[rows, n_heads * head_dim]", product("rows", "n_heads", "head_dim")),
    ),
    params=(*ATTENTION.params, EPS),
    constants={"KV": (0, 1, 2), "INTERLEAVED": (0, 1), "QKNORM": (0, 1)},
    tuning=("TILE_N", "TILE_T", "SPLITS"),
    grid=heads_by_rows,
    base=False,
)

ROPE_ATTENTION_MIXED = replace(
    ROPE_ATTENTION,
    name="rope_attention_mixed",
    meaning="rope_store_kv, then attention of the rotated queries. The rows of a sequence are neighbours, in ascending "
    "positions without gaps, and attend to those before them. Rows with position < 0 or slot < 0 write nothing to the caches; "
    "their out is 0.",
)


def _members(params: Params, tile: Constants) -> Grid:
    return tile["MEMBERS"], 1, 1


def _matrix(name: str, rows: Size, columns: str, shape: str) -> tuple[Binding, Binding]:
    """Return the bindings of one matrix of a layer, codes and scales; `columns` names the parameter with its
    columns."""

    def codes(params: Params, constants: Constants) -> int:
        return rows(params, constants) * (ceil_div(_columns(params, columns), 128) * 32)

    def scales(params: Params, constants: Constants) -> int:
        width, block = ceil_div(_columns(params, columns), 128) * 128, constants["BLOCK"]
        return rows(params, constants) * (ceil_div(width, block) if block else 1)

    width = f"pad({_columns_text(columns)})"
    return (
        Binding(f"w_{name}", "u8", "r", f"[{shape}, {width} / 4]", codes),
        Binding(f"s_{name}", "f32", "r", f"[{shape}] or [{shape}, ceil({width} / BLOCK)]", scales),
    )


def _columns(params: Params, name: str) -> int:
    return int(params["n_heads"]) * int(params["head_dim"]) if name == "queries" else int(params[name])


def _columns_text(name: str) -> str:
    return "n_heads * head_dim" if name == "queries" else name


def _qkv(params: Params, constants: Constants) -> int:
    return (int(params["n_heads"]) + 2 * int(params["n_kv_heads"])) * int(params["head_dim"])


def _gamma(name: str, columns: str, constant: str = "") -> Binding:
    def size(params: Params, constants: Constants) -> int:
        return _columns(params, columns)

    shape = f"[{_columns_text(columns)}]" + (f" {ANY.format(constant)}" if constant else "")
    return Binding(f"gamma_{name}", "f32", "r", shape, sizes.where(constant, size) if constant else size)


def _f32(name: str, access: Access, shape: str, size: Size) -> Binding:
    return Binding(name, "f32", access, shape, size)


DECODER_LAYER = KernelSpec(
    name="decoder_layer",
    meaning="One decoder layer for rows that all belong to different sequences: norm_matmul of x with gamma_qkv and w_qkv into qkv; rope_attention of qkv into heads; "
    "norm_matmul of heads with gamma_o and w_o, added to x; norm_matmul_glu of x with gamma_up and w_up into m; "
    "norm_matmul of m with gamma_down and w_down, added to x. The norms of x are always computed, those of heads and m "
    "if NORM is 1. pad(columns) rounds up to a multiple of 128. The MEMBERS workgroups synchronize with each other, so "
    "all of them must run concurrently. qkv, heads and m are scratch, undefined after the launch.",
    bindings=(
        _f32("x", "rw", "[rows, hidden]", product("rows", "hidden")),
        _f32("qkv", "rw", "[rows, (n_heads + 2 n_kv_heads) * head_dim]", sizes.query_key_value),
        _f32("heads", "rw", "[rows, n_heads * head_dim]", product("rows", "n_heads", "head_dim")),
        _f32("m", "rw", "[rows, ffn]", product("rows", "ffn")),
        Binding("step", "i32", "r", "[rows, 4]", product("rows", times=STEP_FIELDS)),
        _f32("rope", "r", "[positions, head_dim / 2, 2]", product("head_dim")),
        Binding("k_cache", "u8", "rw", "cache rows", CACHE_BLOCK),
        Binding("v_cache", "u8", "rw", "cache rows", CACHE_BLOCK),
        Binding("tables", "i32", "r", "[sequences, max_blocks]", product("max_blocks")),
        *HEAD_GAMMAS,
        _gamma("qkv", "hidden"),
        *_matrix("qkv", _qkv, "hidden", "(n_heads + 2 n_kv_heads) * head_dim"),
        _gamma("o", "queries", "NORM"),
        *_matrix("o", product("hidden"), "queries", "hidden"),
        _gamma("up", "hidden"),
        *_matrix("up", product("ffn", times=2), "hidden", "2 ffn"),
        _gamma("down", "ffn", "NORM"),
        *_matrix("down", product("hidden"), "ffn", "hidden"),
    ),
    params=(
        ROWS,
        u32("hidden", "columns of x"),
        u32("ffn", "columns of m"),
        *ATTENTION.params[1:],
        EPS,
    ),
    constants={
        "KV": (0, 1, 2),
        "INTERLEAVED": (0, 1),
        "QKNORM": (0, 1),
        "ACT": (RELU2, SILU),
        "NORM": (0, 1),
        **SCALES,
    },
    tuning=("MEMBERS",),
    grid=_members,
    base=False,
)
