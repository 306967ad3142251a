"""Norms and activation quantization: rms_norm, rms_norm_quantize, glu_norm_quantize."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from bitnet_hal.kernels.catalogue import SILU
from bitnet_hal.kernels.sizes import SCALE_COLUMNS
from bitnet_hal.kernels.spec import Constants, Params

GROUP_FLOOR = 1e-20
"""Smallest absmax of a group of activations, so that its inverse is finite."""

F32 = npt.NDArray[np.float32]
Arrays = dict[str, npt.NDArray[Any]]


def sizes(p: Params, *names: str) -> list[int]:
    """Return these parameters as integers."""
    return [int(p[name]) for name in names]


def output_block(y: F32, rows: int, outs: int, stride: int, first: int) -> F32:
    """Return columns first..first + outs - 1 of y[rows, stride] as a view. Raises ValueError if y is too short."""
    last = (rows - 1) * stride + first + outs
    if len(y) < last:
        raise ValueError(f"y has {len(y)} elements, the launch writes up to element {last}")
    return np.lib.stride_tricks.as_strided(y[first:], (rows, outs), (4 * stride, 4))


def rms_normalize(x: F32, gamma: F32, eps: float) -> F32:
    """Return x[..., K] / sqrt(mean(x^2) + eps) * gamma in f32; rows whose sum of squares is not finite become NaN."""
    mean = np.add.reduce(x * x, axis=-1, keepdims=True) / np.float32(x.shape[-1])
    mean = np.where(np.isfinite(mean), mean, np.float32(np.nan))
    return np.asarray(x * (np.float32(1) / np.sqrt(mean + np.float32(eps))) * gamma, dtype=np.float32)


def quantize_rows(y: F32, floor: float = 1e-5) -> tuple[npt.NDArray[np.int8], F32, npt.NDArray[np.int32]]:
    """Quantize y[T, K] to int8 by the absmax of each row: (q i8[T, K], scale f32[T], qsum i32[T])."""
    finite = np.all(np.isfinite(y), axis=1)[:, None]
    y = np.where(finite, y, np.float32(0))
    absmax = np.maximum(np.max(np.abs(y), axis=1), np.float32(floor))
    q = np.clip(np.rint(y * (np.float32(127) / absmax)[:, None]), -128, 127).astype(np.int8)
    scale = np.where(finite[:, 0], absmax / np.float32(127), np.float32(np.nan)).astype(np.float32)
    return q, scale, q.sum(axis=1, dtype=np.int32)


def quantize_groups(y: F32, group_size: int) -> tuple[npt.NDArray[np.int8], F32, npt.NDArray[np.int32]]:
    """Quantize every `group_size` columns of y[T, K] by their absmax; K is a multiple of group_size.

    Returns q i8[T, K], and scale f32 and qsum i32, both [T, K / SCALE_COLUMNS]. A row that holds a NaN or Inf gets
    scale = NaN in all its groups.
    """
    rows, width = y.shape
    y = np.where(np.all(np.isfinite(y), axis=1)[:, None], y, np.float32(np.nan))
    q, scale, _ = quantize_rows(y.reshape(-1, group_size), GROUP_FLOOR)
    qsum = q.reshape(rows, -1, SCALE_COLUMNS).sum(axis=2, dtype=np.int32)
    return q.reshape(rows, width), scale.repeat(group_size // SCALE_COLUMNS).reshape(rows, -1), qsum


def store_quantized(y: F32, a: Arrays, p: Params, group_size: int) -> None:
    """Quantize y[T, K] to the bindings q, scale and qsum, in groups of `group_size` columns; 0: whole rows."""
    rows = y.shape[0]
    width = y.shape[1]
    stride = int(p["stride"])
    q = a["q"][: rows * stride].reshape(rows, stride)
    if not group_size:
        q[:, :width], a["scale"][:rows], a["qsum"][:rows] = quantize_rows(y)
        q[:, width:] = 0
        return
    scale, qsum = (a[name][: rows * stride // SCALE_COLUMNS].reshape(rows, -1) for name in ("scale", "qsum"))
    q[:], scale[:], qsum[:] = quantize_groups(np.pad(y, ((0, 0), (0, stride - width))), group_size)


def rms_norm_quantize(a: Arrays, p: Params, c: Constants) -> None:
    """Compute y = norm(x), or x if NORM is 0, and quantize it."""
    rows, width = sizes(p, "rows", "width")
    x = a["x"][: rows * width].reshape(rows, width)
    if c["NORM"]:
        x = rms_normalize(x, a["gamma"][:width], float(p["eps"]))
    store_quantized(x, a, p, c["ABLOCK"])


def gated(gate: F32, up: F32, act: int) -> F32:
    """Return act(gate) * up in f32; act is RELU2 or SILU."""
    if act == SILU:
        return np.asarray(gate / (np.float32(1) + np.exp(-gate)) * up, dtype=np.float32)
    relu = np.maximum(gate, np.float32(0))
    return np.asarray(relu * relu * up)


def glu_norm_quantize(a: Arrays, p: Params, c: Constants) -> None:
    """Compute m = act(gate) * up, norm it if NORM is 1, and quantize it."""
    rows, width = sizes(p, "rows", "width")
    gate_up = a["gate_up"][: rows * 2 * width].reshape(rows, 2, width)
    gate = gate_up[:, 0]
    up = gate_up[:, 1]
    m = gated(gate, up, c["ACT"])
    if c["NORM"]:
        m = rms_normalize(m, a["gamma"][:width], float(p["eps"]))
    store_quantized(m, a, p, c["ABLOCK"])


def rms_norm(a: Arrays, p: Params, c: Constants) -> None:
    """Norm the rows of x that `index` names."""
    rows, width = sizes(p, "rows", "width")
    x = a["x"].reshape(-1, width)[a["index"][:rows]]
    gamma = a["gamma"][:width]
    a["y"][: rows * width].reshape(rows, width)[:] = rms_normalize(x, gamma, float(p["eps"]))
