"""Reference of the kernels of a mixture of experts: route_experts, matmul_experts, clamp_glu_quantize, sum_experts."""

from __future__ import annotations

import numpy as np
from bitnet_hal.kernels.catalogue import SILU
from bitnet_hal.kernels.sizes import row_scales
from bitnet_hal.kernels.spec import Constants, Params
from bitnet_hal.reference.quantize import Arrays, gated, output_block, sizes, store_quantized
from bitnet_hal.reference.ternary import matmul_ternary_block
from bitnet_hal.rounding import ceil_div


def route_experts(a: Arrays, p: Params, c: Constants) -> None:
    """Choose the experts of each row, and compute their weights."""
    rows, experts, used = sizes(p, "rows", "experts", "used")
    logits = a["logits"][: rows * experts].reshape(rows, experts)
    unknown = np.isnan(logits)
    ids = np.lexsort((np.where(unknown, 0, -logits), ~unknown), axis=1)[:, :used]
    chosen = np.take_along_axis(logits, ids, axis=1)
    weights = np.exp(chosen - chosen.max(axis=1, keepdims=True))
    a["ids"][: rows * used].reshape(rows, used)[:] = ids
    a["weights"][: rows * used].reshape(rows, used)[:] = weights / weights.sum(axis=1, keepdims=True)


def matmul_experts(a: Arrays, p: Params, c: Constants) -> None:
    """Compute the product of every pair with the matrix of its expert, the pairs of one expert together."""
    rows, outs, width, experts, used, inputs = sizes(p, "rows", "outs", "width", "experts", "used", "inputs")
    stride, first = sizes(p, "y_stride", "y_first")
    scales = row_scales(width, c["ABLOCK"])
    ids = a["ids"][: rows * used]
    pairs = np.arange(rows * used)
    source = pairs // used * inputs + pairs % used % inputs
    y = output_block(a["y"], rows * used, outs, stride, first)
    columns = {"q": width, "scale": scales, "qsum": scales}
    operands = {name: a[name][: rows * inputs * n].reshape(-1, n) for name, n in columns.items()}
    groups = ceil_div(width, c["BLOCK"])
    for expert in np.unique(ids[(ids >= 0) & (ids < experts)]):
        mine = np.flatnonzero(ids == expert)
        product = {name: np.ascontiguousarray(rows_[source[mine]]).reshape(-1) for name, rows_ in operands.items()}
        product["w"] = a["w"][expert * outs * width // 4 :]
        product["wscale"] = a["wscale"][expert * outs * groups :]
        product["y"] = np.empty(len(mine) * outs, np.float32)
        shape = {"rows": len(mine), "outs": outs, "width": width, "y_stride": outs, "y_first": 0}
        matmul_ternary_block(product, shape, {**c, "ADD": 0})
        y[mine] = product["y"].reshape(-1, outs)


def clamp_glu_quantize(a: Arrays, p: Params, c: Constants) -> None:
    """Quantize silu(min(gate, limit)) * clamp(up)."""
    rows, width = sizes(p, "rows", "width")
    limit = np.float32(p["limit"])
    gate, up = a["gate_up"][: rows * 2 * width].reshape(rows, 2, width).swapaxes(0, 1)
    store_quantized(gated(np.minimum(gate, limit), np.clip(up, -limit, limit), SILU), a, p, c["ABLOCK"])


def sum_experts(a: Arrays, p: Params, c: Constants) -> None:
    """Add the weighted outputs of each row's experts to x."""
    rows, width, used = sizes(p, "rows", "width", "used")
    y = a["y"][: rows * used * width].reshape(rows, used, width)
    weights = a["weights"][: rows * used].reshape(rows, used, 1)
    total = np.zeros((rows, width), np.float32)
    for i in range(used):
        total += weights[:, i] * y[:, i]
    a["x"][: rows * width].reshape(rows, width)[:] += total
