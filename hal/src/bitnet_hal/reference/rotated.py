"""Reference of the kernels that rotate and quantize."""

from __future__ import annotations

import numpy as np
from bitnet_hal.kernels.sizes import SCALE_COLUMNS
from bitnet_hal.kernels.spec import Constants, Params
from bitnet_hal.reference.delta import gated_rms_norm, glu, walsh_hadamard
from bitnet_hal.reference.quantize import F32, GROUP_FLOOR, Arrays, quantize_rows, rms_normalize


def _store(y: F32, a: Arrays, p: Params, c: Constants) -> None:
    """Quantize H(signs * y) into the outputs."""
    rows, width = y.shape
    turned = walsh_hadamard(a["signs"][:width] * y, int(p["block"])).reshape(-1, c["ABLOCK"])
    q, scale, _ = quantize_rows(turned, GROUP_FLOOR)
    count = rows * width // SCALE_COLUMNS
    a["q"][: rows * width] = q.reshape(-1)
    a["scale"][:count] = scale.repeat(c["ABLOCK"] // SCALE_COLUMNS)
    a["qsum"][:count] = q.reshape(count, -1).sum(axis=1, dtype=np.int32)


def norm_rotate_quantize(a: Arrays, p: Params, c: Constants) -> None:
    """Compute y = norm(x), or x if NORM is 0, then rotate and quantize it."""
    rows, width = int(p["rows"]), int(p["width"])
    y = a["x"][: rows * width].reshape(rows, width)
    if c["NORM"]:
        y = rms_normalize(y, a["gamma"][:width], float(p["eps"]))
    if c["KEEP"]:
        a["y"][: rows * width] = y.reshape(-1)
    _store(y, a, p, c)


def glu_rotate_quantize(a: Arrays, p: Params, c: Constants) -> None:
    """Compute act(gate) * up, then rotate and quantize it."""
    rows, width = int(p["rows"]), int(p["width"])
    m = np.empty((rows, width), np.float32)
    glu({"gate_up": a["gate_up"], "m": m.reshape(-1)}, p, c)
    _store(m, a, p, c)


def gated_rotate_quantize(a: Arrays, p: Params, c: Constants) -> None:
    """Compute norm(x) * act(gate), then rotate and quantize it."""
    rows, width = int(p["rows"]), int(p["n_heads"]) * int(p["head_dim"])
    y = np.empty((rows, width), np.float32)
    gated_rms_norm({**a, "y": y.reshape(-1)}, p, c)
    _store(y, a, p, c)
