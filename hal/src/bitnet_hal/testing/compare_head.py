"""Holding the exact small head against the bounds that it promises."""

from __future__ import annotations

import numpy as np

from bitnet_hal.kernels.lm_head_int8 import HEAD_GROUP
from bitnet_hal.rounding import ceil_div
from bitnet_hal.testing.cases.case import Array, Arrays, CaseLaunch

_SLACK = 1e-5
"""Of a bound: what f32 sums in another order may move."""


def check_packed(what: str, launch: CaseLaunch, actual: Arrays) -> None:
    """Codes are nearest to w / scale, or next to a tie; errors cover what the codes leave, and little more."""
    outs, width = int(launch.params["outs"]), int(launch.params["width"])
    w = launch.arrays["w"].view("<f2").reshape(outs, width).astype(np.float64)
    sound = np.isfinite(w).all(axis=1)
    codes = actual["codes"].reshape(outs, width).astype(np.float64)
    scale, error = (actual[name].astype(np.float64) for name in ("scale", "error"))
    assert not codes[~sound].any(), f"{what}: rows with a NaN or Inf must have codes 0"
    full = sound & (scale > 0)
    distance = np.abs(codes[full] - w[full] / scale[full, None])
    assert (distance <= 0.5 + 1e-3).all(), f"{what}: a code of row {_first(distance > 0.5 + 1e-3)} is not the nearest"
    rest = np.linalg.norm(w[sound] - codes[sound] * scale[sound, None], axis=1)
    least = rest + 3 * (width + 64) * 2.0**-24 * np.linalg.norm(w[sound], axis=1)
    low, high = error[sound] < least * (1 - _SLACK), error[sound] > 1.1 * least
    assert not low.any(), f"{what}: the error of row {_first(low)} is less than what its codes leave"
    assert not high.any(), f"{what}: the error of row {_first(high)} is more than 1.1 times what its codes leave"


def check_refined(what: str, launch: CaseLaunch, actual: Array) -> None:
    """Logits that may be among the k largest are exact; others are exact or approximate logits."""
    p, a = launch.params, launch.arrays
    rows, outs, width, stride, k = (int(p[name]) for name in ("rows", "outs", "width", "stride", "k"))
    x = a["x"].reshape(rows, width).astype(np.float64)
    w = a["w"].view("<f2").reshape(outs, width).astype(np.float64)
    bound = a["bound"].reshape(rows, ceil_div(outs, HEAD_GROUP)).astype(np.float64)
    for row in range(rows):
        first = row * stride
        got, approx = (array[first : first + outs] for array in (actual, a["logits"]))
        with np.errstate(all="ignore"):
            exact, length = w @ x[row], np.linalg.norm(x[row])
            reach = a["error"] * length
            spoiled = k > bound.shape[1] or np.isnan(bound[row]).any()
            threshold = -np.inf if spoiled else np.sort(bound[row])[-k]
            due = ~(approx + reach < threshold + _SLACK * np.abs(threshold))
            close = np.isclose(got, exact, rtol=1e-4, atol=_SLACK * np.abs(exact).max(initial=0), equal_nan=True)
            same = got.view(np.uint32) == approx.view(np.uint32)
        late = due & ~close
        assert not late.any(), (
            f"{what}: logit {_first(late)} of row {row} may be one of the {k} largest and is not exact"
        )
        stray = ~close & ~same
        assert not stray.any(), f"{what}: logit {_first(stray)} of row {row} is neither exact nor its approx"
    gaps = np.ones(actual.size, bool)
    for row in range(rows):
        gaps[row * stride : row * stride + outs] = False
    assert (actual[gaps] == a["logits"][gaps]).all(), f"{what}: elements between the rows of logits were written"


def _first(wrong: Array) -> int:
    return int(np.argwhere(wrong)[0][0])
