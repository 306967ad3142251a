"""Faulty norms and quantization: the case meant for each fault rejects it, a plain case accepts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Arrays = dict[str, Any]
Meaning = Callable[[Arrays, Any, Any], None]


def requantize(a: Arrays, p: dict[str, Any], rounding: Callable[[Any], Any], y: Any) -> None:
    """Store y[T, width] with another rounding."""
    rows, width, stride = (int(p[n]) for n in ("rows", "width", "stride"))
    absmax = np.maximum(np.abs(y).max(axis=1, keepdims=True), np.float32(1e-5))
    q = a["q"].reshape(rows, stride)
    q[:, :width] = np.clip(rounding(y * (np.float32(127) / absmax)), -128, 127)
    a["qsum"][:] = q.sum(axis=1)


def halves_rounded_up(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, c)
    if not c["NORM"]:
        requantize(a, p, lambda x: np.floor(x + 0.5), a["x"].reshape(int(p["rows"]), -1))


def codes_truncated(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, c)
    if not c["NORM"]:
        requantize(a, p, np.trunc, a["x"].reshape(int(p["rows"]), -1))


def padding_not_cleared(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, c)
    rows, width, stride = (int(p[n]) for n in ("rows", "width", "stride"))
    a["q"].reshape(rows, stride)[:, width:] = 1


def nan_swallowed(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(dict(a, x=np.nan_to_num(a["x"])) if np.isnan(a["x"]).any() else a, p, c)


def overflow_passes_for_zero(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, c)
    if np.isfinite(a["x"]).all():
        np.nan_to_num(a["scale"], copy=False)


def zero_rows_divided_by_zero(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, c)
    a["scale"][~a["x"].reshape(int(p["rows"]), -1).any(axis=1)] = np.nan


def eps_left_out(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, {**p, "eps": 0.0 if p["rows"] == 7 and p["width"] == 384 else p["eps"]}, c)


def scale_of_the_first_row_for_all(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, c)
    a["scale"][:] = a["scale"][0]


def gamma_left_out(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(dict(a, gamma=np.ones_like(a["gamma"])), p, c)


def qsum_left_out(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, c)
    a["qsum"][1:] = 0


def silu_taken_for_relu2(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, {**c, "ACT": 0})


def relu_not_squared(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    gate_up = a["gate_up"].copy().reshape(int(p["rows"]), 2, -1)
    if c["ACT"] == 0:
        gate_up[:, 0] = np.sqrt(np.maximum(gate_up[:, 0], 0))
    right(dict(a, gate_up=gate_up.reshape(-1)), p, c)


def activation_in_half_precision(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    big = np.abs(a["gate_up"]).max() > 1000
    with np.errstate(over="ignore"):
        right(dict(a, gate_up=np.clip(a["gate_up"], -255, 255)) if big else a, p, c)


def nan_gate_swallowed_by_max(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    gate_up = a["gate_up"].copy().reshape(int(p["rows"]), 2, -1)
    gate_up[:, 0] = np.fmax(gate_up[:, 0], 0)
    right(dict(a, gate_up=gate_up.reshape(-1)), p, c)


def index_ignored(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(dict(a, index=np.arange(len(a["index"]))), p, c)
    if p["rows"] == 1:
        right(a, p, c)


def norm_swallows_nan(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, c)
    np.nan_to_num(a["y"], copy=False)


FAULTS = [
    # (fault, kernel, rejected by, accepted by)
    (halves_rounded_up, "rms_norm_quantize", "ties", "plain-t7-k200"),
    (codes_truncated, "rms_norm_quantize", "plain-t7-k200", "norm-t7-k128"),
    (padding_not_cleared, "rms_norm_quantize", "norm-t8-k129", "norm-t7-k128"),
    (nan_swallowed, "rms_norm_quantize", "nan-inf", "overflow"),
    (overflow_passes_for_zero, "rms_norm_quantize", "overflow", "nan-inf"),
    (zero_rows_divided_by_zero, "rms_norm_quantize", "zero-rows", "norm-t7-k128"),
    (eps_left_out, "rms_norm_quantize", "extreme-scales", "norm-t7-k128"),
    (scale_of_the_first_row_for_all, "rms_norm_quantize", "norm-t7-k128", "norm-t1-k1"),
    (gamma_left_out, "rms_norm_quantize", "outlier", "plain-t1-k128"),
    (qsum_left_out, "rms_norm_quantize", "norm-t33-k640", "norm-t1-k1"),
    (silu_taken_for_relu2, "glu_norm_quantize", "silu-t7-k200", "relu2-norm-t7-k128"),
    (relu_not_squared, "glu_norm_quantize", "relu2-plain", "silu-norm"),
    (activation_in_half_precision, "glu_norm_quantize", "relu2-beyond-f16", "relu2-zero-rows"),
    (nan_gate_swallowed_by_max, "glu_norm_quantize", "relu2-plain-nan-inf", "relu2-plain"),
    (index_ignored, "rms_norm", "t2-k127", "t1-k1"),
    (norm_swallows_nan, "rms_norm", "nan-inf", "t7-k128"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_kernel_is_rejected(fault: tuple[Any, ...], reject: Callable[..., None]) -> None:
    reject(*fault)
