"""Reference of the int8 lm_head: pack_head, approx_logits and refine_logits."""

from __future__ import annotations

import numpy as np
from bitnet_hal.kernels.lm_head_int8 import HEAD_GROUP
from bitnet_hal.kernels.spec import Constants, Params
from bitnet_hal.reference.dense import U8, decode_table
from bitnet_hal.reference.quantize import F32, Arrays, sizes
from bitnet_hal.rounding import ceil_div

_CHUNK = 1 << 20
"""Elements of the head that are decoded at once."""


def _table(a: Arrays, p: Params) -> U8:
    outs, width = sizes(p, "outs", "width")
    return np.asarray(a["w"])[: 2 * outs * width].reshape(outs, 2 * width)


def pack_head(a: Arrays, p: Params, c: Constants) -> None:
    """Write codes, scales and error norms of every row."""
    outs, width = sizes(p, "outs", "width")
    table = _table(a, p)
    codes = a["codes"][: outs * width].reshape(outs, width)
    rounding = 3.0 * (width + 64) * 2.0**-24
    step = max(1, _CHUNK // width)
    for first in range(0, outs, step):
        rows = slice(first, min(outs, first + step))
        w: F32 = np.asarray(decode_table(table[rows], "f16"))
        finite = np.all(np.isfinite(w), axis=1)[:, None]
        w = np.where(finite, w, np.float32(0))
        scale = np.abs(w).max(axis=1) / np.float32(127)
        inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
        codes[rows] = np.clip(np.rint(w * inverse[:, None]), -127, 127)
        apart = w.astype(np.float64) - codes[rows] * scale[:, None].astype(np.float64)
        norms = np.linalg.norm(apart, axis=1) + rounding * np.linalg.norm(w.astype(np.float64), axis=1)
        a["scale"][rows] = np.where(finite[:, 0], scale, np.float32(np.nan))
        a["error"][rows] = norms * 1.001


def approx_logits(a: Arrays, p: Params, c: Constants) -> None:
    """Compute logits from the int8 copy, and the largest lower bound of every group of rows."""
    rows, outs, width = sizes(p, "rows", "outs", "width")
    x = a["x"][: rows * width].reshape(rows, width)
    codes = a["codes"][: outs * width].reshape(outs, width)
    logits = _logits(a, p)
    values = codes.astype(np.float32)
    for one, out in zip(x, logits, strict=True):
        out[:] = (values @ one) * a["scale"][:outs]
    low = logits - a["error"][:outs] * _length(x)
    low = np.where(np.isfinite(low), low, np.float32(np.nan))
    starts = np.arange(0, outs, HEAD_GROUP)
    a["bound"][: rows * starts.size].reshape(rows, -1)[:] = np.maximum.reduceat(low, starts, axis=1)


def refine_logits(a: Arrays, p: Params, c: Constants) -> None:
    """Replace approximate logits that may be among the k largest with exact ones."""
    rows, outs, width, k = sizes(p, "rows", "outs", "width", "k")
    x = a["x"][: rows * width].reshape(rows, width)
    logits = _logits(a, p)
    table = _table(a, p)
    bound = a["bound"][: rows * ceil_div(outs, HEAD_GROUP)].reshape(rows, -1)
    for row, length in enumerate(_length(x)[:, 0]):
        threshold = np.sort(bound[row])[-k] if k <= bound.shape[1] and not np.isnan(bound[row]).any() else np.nan
        open_ids = np.flatnonzero(~(logits[row] + a["error"][:outs] * length < threshold))
        logits[row, open_ids] = decode_table(table[open_ids], "f16") @ x[row]


def _logits(a: Arrays, p: Params) -> F32:
    shape = (int(p["rows"]), int(p["outs"]))
    stride = 4 * int(p["stride"])
    flat: F32 = a["logits"]
    rows: F32 = np.lib.stride_tricks.as_strided(flat, shape, (stride, 4))
    return rows


def _length(x: F32) -> F32:
    """Return |x| of every row, f32[T, 1], rounded up."""
    length: F32 = np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True).astype(np.float32)
    return length * np.float32(1.000001)
