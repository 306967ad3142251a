"""Kernels that join others, in terms of what they join: norm_matmul, norm_matmul_glu, rope_attention."""

from __future__ import annotations

import numpy as np

from bitnet_core.kernels.spec import Constants, Params
from bitnet_core.reference.attention import attention, rope_store_kv
from bitnet_core.reference.quantize import Arrays, gated, rms_norm_quantize
from bitnet_core.reference.ternary import matmul_ternary


def _quantized(a: Arrays, p: Params, c: Constants) -> Arrays:
    rows, width = int(p["rows"]), int(p["width"])
    q: Arrays = {
        "q": np.empty(rows * width, np.int8),
        "scale": np.empty(rows, np.float32),
        "qsum": np.empty(rows, np.int32),
    }
    shape = {"rows": rows, "width": p["columns"], "stride": width, "eps": p["eps"]}
    rms_norm_quantize({"x": a["x"], "gamma": a["gamma"], **q}, shape, c)
    return q


def norm_matmul(a: Arrays, p: Params, c: Constants) -> None:
    """rms_norm_quantize, matmul_ternary."""
    matmul_ternary({**_quantized(a, p, c), **{name: a[name] for name in ("w", "wscale", "y")}}, p, c)


def norm_matmul_glu(a: Arrays, p: Params, c: Constants) -> None:
    """rms_norm_quantize, matmul_ternary of both halves, act(gate) * up."""
    rows, outs = int(p["rows"]), int(p["outs"])
    y = np.empty(rows * 2 * outs, np.float32)
    both = {**p, "outs": 2 * outs, "y_stride": 2 * outs, "y_first": 0}
    matmul_ternary({**_quantized(a, p, c), "w": a["w"], "wscale": a["wscale"], "y": y}, both, {"ADD": 0})
    gate, up = y.reshape(rows, 2, outs).transpose(1, 0, 2)
    a["m"][: rows * outs].reshape(rows, outs)[:] = gated(gate, up, c["ACT"])


def rope_attention(a: Arrays, p: Params, c: Constants) -> None:
    """rope_store_kv, attention; rows without a slot do not take part."""
    rows, size = int(p["rows"]), int(p["n_heads"]) * int(p["head_dim"])
    step = a["step"][: rows * 4].reshape(rows, 4).copy()
    step[step[:, 2] < 0, 1] = -1
    q = np.empty(rows * size, np.float32)
    rope_store_kv({**a, "q": q, "step": step.reshape(-1)}, p, c)
    attention({**a, "q": q, "step": step.reshape(-1)}, p, c)
