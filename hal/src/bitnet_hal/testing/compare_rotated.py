"""Compare int8 codes of rotated rows with float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bitnet_hal.kernels.catalogue import SIGMOID, SILU
from bitnet_hal.kernels.sizes import SCALE_COLUMNS
from bitnet_hal.reference.float64 import hadamard, sigmoid
from bitnet_hal.reference.quantize import GROUP_FLOOR
from bitnet_hal.testing.cases.case import Arrays, CaseLaunch

F64 = npt.NDArray[np.float64]


def exact_codes(kernel: str, launch: CaseLaunch) -> F64:
    """Return the codes before rounding, f64[groups, ABLOCK]; groups that become NaN hold arbitrary values."""
    p, c = launch.params, launch.constants
    a = {name: array.astype(np.float64) for name, array in launch.arrays.items() if name not in ("q", "qsum")}
    rows = int(p["rows"])
    if kernel == "norm_rotate_quantize":
        y = a["x"].reshape(rows, -1)
        if c["NORM"]:
            y = _normed(y, float(p["eps"])) * a["gamma"]
    elif kernel == "glu_rotate_quantize":
        gate, up = np.split(a["gate_up"].reshape(rows, -1), 2, axis=1)
        y = (gate * sigmoid(gate) if c["ACT"] == SILU else np.maximum(gate, 0) ** 2) * up
    else:
        heads, groups = int(p["n_heads"]), int(p["groups"])
        x, gate = a["x"].reshape(rows, heads, -1), a["gate"].reshape(rows, heads, -1)
        x = _normed(x, float(p["eps"])) * a["gamma"] if c["NORM"] else x
        y = x * sigmoid(gate) * (1 if c["ACT"] == SIGMOID else gate)
        y = y.reshape(rows, heads // groups, groups, -1).swapaxes(1, 2).reshape(rows, -1)
    turned = hadamard(a["signs"] * y, int(p["block"])).reshape(-1, c["ABLOCK"])
    return np.asarray(turned * 127 / np.maximum(np.abs(turned).max(axis=1, keepdims=True), GROUP_FLOOR))


def _normed(x: F64, eps: float) -> F64:
    return np.asarray(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps))


def check_rotated(
    what: str, kernel: str, launch: CaseLaunch, expected: Arrays, actual: Arrays, tolerance: float
) -> None:
    """Check q and qsum: nearest codes, qsum the sum of the device's own codes, zeros in groups that become NaN."""
    block = launch.constants["ABLOCK"]
    sums = actual["q"].reshape(-1, SCALE_COLUMNS).sum(axis=1, dtype=np.int64)
    assert np.array_equal(sums, actual["qsum"]), f"{what}: qsum is not the sum of q"
    with np.errstate(all="ignore"):
        exact = exact_codes(kernel, launch)
    codes = actual["q"].reshape(-1, block)
    spoiled = np.isnan(expected["scale"].reshape(-1, block // SCALE_COLUMNS)[:, 0])
    assert not codes[spoiled].any(), f"{what}: columns with scale = NaN must have q = 0"
    distance = np.abs(codes[~spoiled] - exact[~spoiled])
    wrong = int((~(distance <= 0.5 + tolerance)).sum())
    assert not wrong, f"{what}: {wrong} of {codes.size} codes are not the nearest"
