"""Check the int8 lm_head against the error bounds that its kernels guarantee."""

from __future__ import annotations

import numpy as np

from bitnet_hal.kernels.lm_head_int8 import HEAD_GROUP
from bitnet_hal.rounding import ceil_div
from bitnet_hal.testing.cases.case import Array, Arrays, CaseLaunch

_SLACK = 1e-5
"""Relative slack of a bound: f32 sums in another order differ by less."""


def check_packed(what: str, launch: CaseLaunch, actual: Arrays) -> None:
    """Check that codes are nearest to w / scale, up to ties, and that each error bound is 1 to 1.1 times the true
    error."""
    outs = int(launch.params["outs"])
    width = int(launch.params["width"])
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
    low = error[sound] < least * (1 - _SLACK)
    high = error[sound] > 1.1 * least
    assert not low.any(), f"{what}: the error bound of row {_first(low)} is below the true error of its codes"
    assert not high.any(), (
        f"{what}: the error bound of row {_first(high)} is above 1.1 times the true error of its codes"
    )


def check_refined(what: str, launch: CaseLaunch, actual: Array) -> None:
    """Check that logits that may be among the k largest are exact, and all others exact or approximate."""
    p = launch.params
    a = launch.arrays
    rows, outs, width, stride, k = (int(p[name]) for name in ("rows", "outs", "width", "stride", "k"))
    x = a["x"].reshape(rows, width).astype(np.float64)
    w = a["w"].view("<f2").reshape(outs, width).astype(np.float64)
    bound = a["bound"].reshape(rows, ceil_div(outs, HEAD_GROUP)).astype(np.float64)
    for row in range(rows):
        first = row * stride
        got, approx = (array[first : first + outs] for array in (actual, a["logits"]))
        with np.errstate(all="ignore"):
            exact = w @ x[row]
            length = np.linalg.norm(x[row])
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
        assert not stray.any(), f"{what}: logit {_first(stray)} of row {row} is neither exact nor the approximate logit"
    gaps = np.ones(actual.size, bool)
    for row in range(rows):
        gaps[row * stride : row * stride + outs] = False
    assert (actual[gaps] == a["logits"][gaps]).all(), f"{what}: elements between the rows of logits were written"


def _first(wrong: Array) -> int:
    return int(np.argwhere(wrong)[0][0])
