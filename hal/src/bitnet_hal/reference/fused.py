"""Reference of the fused kernels, composed of the kernels that they fuse."""

from __future__ import annotations

import numpy as np
from bitnet_hal.kernels.sizes import row_scales
from bitnet_hal.kernels.spec import Constants, Params
from bitnet_hal.reference.attention import attention, rope_store_kv
from bitnet_hal.reference.quantize import Arrays, gated, rms_norm_quantize, sizes
from bitnet_hal.reference.ternary import matmul_ternary, matmul_ternary_block
from bitnet_hal.rounding import ceil_div


def _product(a: Arrays, p: Params, c: Constants, y: Arrays, shape: Params, add: int) -> None:
    """Quantize x by rms_norm_quantize and multiply it with w into y."""
    rows, width = sizes(p, "rows", "width")
    scales = rows * row_scales(width, c["ABLOCK"])
    made: Arrays = {
        "q": np.empty(rows * width, np.int8),
        "scale": np.empty(scales, np.float32),
        "qsum": np.empty(scales, np.int32),
    }
    norm = {"rows": rows, "width": p["columns"], "stride": width, "eps": p["eps"]}
    rms_norm_quantize({"x": a["x"], "gamma": a["gamma"], **made}, norm, c)
    matmul = matmul_ternary_block if c["BLOCK"] else matmul_ternary
    matmul({**made, "w": a["w"], "wscale": a["wscale"], **y}, shape, {**c, "ADD": add})


def norm_matmul(a: Arrays, p: Params, c: Constants) -> None:
    """Run rms_norm_quantize, then matmul_ternary or matmul_ternary_block."""
    _product(a, p, c, {"y": a["y"]}, p, c["ADD"])


def norm_matmul_glu(a: Arrays, p: Params, c: Constants) -> None:
    """Run norm_matmul for gate and up, then act(gate) * up."""
    rows, outs = sizes(p, "rows", "outs")
    y = np.empty(rows * 2 * outs, np.float32)
    _product(a, p, c, {"y": y}, {**p, "outs": 2 * outs, "y_stride": 2 * outs, "y_first": 0}, 0)
    gate, up = y.reshape(rows, 2, outs).transpose(1, 0, 2)
    a["m"][: rows * outs].reshape(rows, outs)[:] = gated(gate, up, c["ACT"])


def matmul_ternary_glu(a: Arrays, p: Params, c: Constants) -> None:
    """Multiply with gate and up, then compute act(gate) * up."""
    rows, outs = sizes(p, "rows", "outs")
    y = np.empty(rows * 2 * outs, np.float32)
    matmul = matmul_ternary_block if c["BLOCK"] else matmul_ternary
    matmul({**a, "y": y}, {**p, "outs": 2 * outs, "y_stride": 2 * outs, "y_first": 0}, {**c, "ADD": 0})
    gate, up = y.reshape(rows, 2, outs).transpose(1, 0, 2)
    a["m"][: rows * outs].reshape(rows, outs)[:] = gated(gate, up, c["ACT"])


def rope_attention(a: Arrays, p: Params, c: Constants) -> None:
    """Run rope_store_kv, then attention; rows without a slot are treated as unused."""
    rows = int(p["rows"])
    size = int(p["n_heads"]) * int(p["head_dim"])
    step = a["step"][: rows * 4].reshape(rows, 4).copy()
    step[step[:, 2] < 0, 1] = -1
    q = np.empty(rows * size, np.float32)
    rope_store_kv({**a, "q": q, "step": step.reshape(-1)}, p, c)
    attention({**a, "q": q, "step": step.reshape(-1)}, p, c)


def decoder_layer(a: Arrays, p: Params, c: Constants) -> None:
    """Run the five launches of a layer."""
    count = int(p["rows"])
    hidden = int(p["hidden"])
    ffn = int(p["ffn"])
    queries = int(p["n_heads"]) * int(p["head_dim"])
    outs = queries + 2 * int(p["n_kv_heads"]) * int(p["head_dim"])

    def shape(columns: int, rows: int) -> Params:
        width = ceil_div(columns, 128) * 128
        sizes = {"columns": columns, "width": width, "outs": rows, "y_stride": rows, "y_first": 0}
        return {"rows": count, "eps": p["eps"], **sizes}

    def matrix(name: str) -> Arrays:
        return {"gamma": a[f"gamma_{name}"], "w": a[f"w_{name}"], "wscale": a[f"s_{name}"]}

    norm = {**c, "NORM": 1}
    norm_matmul({"x": a["x"], "y": a["qkv"], **matrix("qkv")}, shape(hidden, outs), {**norm, "ADD": 0})
    rope_attention({**a, "out": a["heads"]}, p, c)
    norm_matmul({"x": a["heads"], "y": a["x"], **matrix("o")}, shape(queries, hidden), {**c, "ADD": 1})
    norm_matmul_glu({"x": a["x"], "m": a["m"], **matrix("up")}, shape(hidden, ffn), norm)
    norm_matmul({"x": a["m"], "y": a["x"], **matrix("down")}, shape(ffn, hidden), {**c, "ADD": 1})
