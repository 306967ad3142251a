"""Cases of rms_norm_quantize, glu_norm_quantize and rms_norm."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from bitnet_hal.kernels.catalogue import RELU2, SILU
from bitnet_hal.kernels.sizes import row_scales
from bitnet_hal.testing.cases.case import BATCH_ROWS, Array, Arrays, Case, CaseLaunch, Rng, blank
from bitnet_hal.testing.cases.data import normal, padded

Edit = Callable[[Array], None]
"""Changes rows of the input x[T, width] in place."""


def _outputs(rows: int, stride: int, act_group: int = 0) -> Arrays:
    scales = rows * row_scales(stride, act_group)
    return {"q": blank(rows * stride, "i8"), "scale": blank(scales, "f32"), "qsum": blank(scales, "i32")}


def _rms(rng: Rng, rows: int, width: int, norm: int = 1, edit: Edit | None = None, act_group: int = 0) -> CaseLaunch:
    x = normal(rng, rows, width) * np.float32(3)
    if edit:
        edit(x)
    return CaseLaunch(
        {"rows": rows, "width": width, "stride": padded(width), "eps": 1e-5},
        {"x": x, "gamma": rng.uniform(0.2, 2, width), **_outputs(rows, padded(width), act_group)},
        {"NORM": norm, "ABLOCK": act_group},
    )


def _glu(
    rng: Rng, rows: int, width: int, act: int, norm: int, edit: Edit | None = None, act_group: int = 0
) -> CaseLaunch:
    gate_up = normal(rng, rows, 2 * width) * np.float32(2)
    if edit:
        edit(gate_up)
    return CaseLaunch(
        {"rows": rows, "width": width, "stride": padded(width), "eps": 1e-5},
        {"gate_up": gate_up, "gamma": rng.uniform(0.2, 2, width), **_outputs(rows, padded(width), act_group)},
        {"ACT": act, "NORM": norm, "ABLOCK": act_group},
    )


def _final(rng: Rng, rows: int, width: int, edit: Edit | None = None) -> CaseLaunch:
    x = normal(rng, rows + 3, width)
    if edit:
        edit(x)
    index = rng.permutation(rows + 3)[:rows]
    return CaseLaunch(
        {"rows": rows, "width": width, "eps": 1e-6},
        {"x": x, "index": index, "gamma": rng.uniform(0.2, 2, width), "y": blank(rows * width, "f32")},
    )


def _gain(rng: Rng, rows: int, width: int) -> CaseLaunch:
    """Return a launch that multiplies by gamma / 2^20, because its eps is much larger than the mean square."""
    launch = _final(rng, rows, width)
    launch.params["eps"] = 2.0**40
    launch.arrays["gamma"] = launch.arrays["gamma"] * np.float32(2**20)
    return launch


def _zero_rows(x: Array) -> None:
    x[1::2] = 0


def _nan_inf(x: Array) -> None:
    """Put NaN at the end, +Inf at the start, -Inf in the middle; rows 0, 2 and 4 stay finite."""
    x[1, -1] = np.nan
    x[3, 0] = np.inf
    x[5, x.shape[1] // 2] = -np.inf


def _overflow(x: Array) -> None:
    """Set finite values whose squares overflow; the row before stays small."""
    x[1, 3] = 3e25


def _nan_gate(gate_up: Array) -> None:
    """Put NaN into the gate, where max(g, 0) would hide it, and Inf and NaN into the up half."""
    width = gate_up.shape[1] // 2
    gate_up[1, width - 1] = np.nan
    gate_up[3, 0] = np.inf
    gate_up[5, width + 1] = np.nan
    gate_up[5, 1] = 2


def _scales(x: Array) -> None:
    """Scale rows from 1e-12 to 1e12: below the absmax floor, and to large factors."""
    x *= np.logspace(-12, 12, x.shape[0], dtype=np.float32)[:, None]


def _zero_blocks(x: Array) -> None:
    """Set whole groups to zeros, and one to tiny values that the floor of whole rows would make zeros."""
    x[:, 32:96] = 0
    x[:, 128:160] *= np.float32(1e-9)


def _outlier(x: Array) -> None:
    x[:, x.shape[1] // 3] = 1e4


def _ties(x: Array) -> None:
    """Set absmax = 127, so that the factor is 1 and every other value is halfway between two codes."""
    x[:] = np.arange(x.shape[1], dtype=np.float32) % 126 - 62.5
    x[:, 0] = 127
    x[:, -1] = -127


def _big_gate(gate_up: Array) -> None:
    """Set gates whose squares are far beyond f16's 65504 and far below f32's maximum."""
    gate_up *= np.float32(3000)


def cases() -> Iterator[Case]:
    """Yield widths around a block, all T, and the inputs at which norms and rounding go wrong."""
    yield from _rms_cases()
    yield from _glu_cases()
    for rows, width in ((1, 1), (2, 127), (7, 128), (8, 129), (33, 2560), (1, 8640), (512, 64)):
        yield Case("rms_norm", f"t{rows}-k{width}", _final, (rows, width))
    yield Case("rms_norm", "gain", _gain, (300, 64))
    yield Case("rms_norm", "zero-rows", _final, (6, 256, _zero_rows))
    yield Case("rms_norm", "nan-inf", _final, (7, 256, _nan_inf))
    yield Case("rms_norm", "extreme-scales", _final, (9, 256, _scales))


def _rms_cases() -> Iterator[Case]:
    name = "rms_norm_quantize"
    for rows, width in ((1, 1), (2, 127), (7, 128), (8, 129), (33, 640), (2, 2560), (1, 8640), (512, 256)):
        yield Case(name, f"norm-t{rows}-k{width}", _rms, (rows, width))
    for rows, width in ((1, 128), (7, 200), (33, 2560)):
        yield Case(name, f"plain-t{rows}-k{width}", _rms, (rows, width, 0))
    for label, edit in (
        ("zero-rows", _zero_rows),
        ("nan-inf", _nan_inf),
        ("overflow", _overflow),
        ("extreme-scales", _scales),
        ("outlier", _outlier),
    ):
        yield Case(name, label, _rms, (7, 384, 1, edit))
    yield Case(name, "plain-nan-inf", _rms, (7, 384, 0, _nan_inf))
    yield Case(name, "ties", _rms, (2, 256, 0, _ties))
    for rows, width in ((1, 1), (2, 127), (7, 128), (8, 129), (33, 640), (1, 8640), (512, 256)):
        yield Case(name, f"a32-norm-t{rows}-k{width}", _rms, (rows, width, 1, None, 32))
    yield Case(name, "a32-plain-t7-k200", _rms, (7, 200, 0, None, 32))
    for label, edit in (
        ("zero-rows", _zero_rows),
        ("nan-inf", _nan_inf),
        ("overflow", _overflow),
        ("extreme-scales", _scales),
        ("outlier", _outlier),
        ("zero-blocks", _zero_blocks),
    ):
        yield Case(name, f"a32-{label}", _rms, (7, 384, 1, edit, 32))
        yield Case(name, f"a128-{label}", _rms, (7, 384, 1, edit, 128))
    for rows, width in ((1, 1), (2, 130), (8, 288), (33, 640), (1, 8640)):
        yield Case(name, f"a128-norm-t{rows}-k{width}", _rms, (rows, width, 1, None, 128))
    yield Case(name, "a128-plain-t7-k200", _rms, (7, 200, 0, None, 128))
    yield Case(name, "a32-plain-nan-inf", _rms, (7, 384, 0, _nan_inf, 32))


def _glu_cases() -> Iterator[Case]:
    name = "glu_norm_quantize"
    for rows, width in ((1, 1), (2, 127), (7, 128), (8, 129), (33, 640), (1, 8640), (512, 256)):
        yield Case(name, f"relu2-norm-t{rows}-k{width}", _glu, (rows, width, RELU2, 1))
    for rows, width in ((1, 128), (7, 200), (2, 6912)):
        yield Case(name, f"silu-t{rows}-k{width}", _glu, (rows, width, SILU, 0))
    yield Case(name, "relu2-plain", _glu, (3, 320, RELU2, 0))
    yield Case(name, "silu-norm", _glu, (3, 320, SILU, 1))
    for act, label in ((RELU2, "relu2"), (SILU, "silu")):
        yield Case(name, f"{label}-zero-rows", _glu, (7, 256, act, 1, _zero_rows))
        yield Case(name, f"{label}-nan-inf", _glu, (7, 256, act, 1, _nan_gate))
        yield Case(name, f"{label}-plain-nan-inf", _glu, (7, 256, act, 0, _nan_gate))
        yield Case(name, f"{label}-beyond-f16", _glu, (4, 256, act, 1, _big_gate))
        yield Case(name, f"a32-{label}-nan-inf", _glu, (7, 256, act, 1, _nan_gate, 32))
    for rows, width in ((1, 128), (7, 200), (2, 6144), (33, 320), (512, 128)):
        yield Case(name, f"a32-silu-t{rows}-k{width}", _glu, (rows, width, SILU, 0, None, 32))
    yield Case(name, "a32-relu2-norm", _glu, (3, 320, RELU2, 1, None, 32))
    yield Case(name, "a128-relu2-norm", _glu, (3, 320, RELU2, 1, None, 128))
    yield Case(name, "a128-silu-nan-inf", _glu, (7, 256, SILU, 0, _nan_gate, 128))
    for rows, width in ((1, 8640), (8, 130), (33, 640)):
        yield Case(name, f"a128-silu-t{rows}-k{width}", _glu, (rows, width, SILU, 0, None, 128))


def batches() -> Iterator[Case]:
    """Yield rows of norms and quantization for the rule of batch invariance."""
    for group_size in (0, 32, 128):
        yield Case("rms_norm_quantize", f"batch-a{group_size}", _rms, (BATCH_ROWS, 640, 1, None, group_size))
        yield Case("glu_norm_quantize", f"batch-a{group_size}", _glu, (BATCH_ROWS, 640, SILU, 1, None, group_size))
    yield Case("rms_norm", "batch", _final, (BATCH_ROWS, 640))
