"""Compare a device's outputs with the numpy reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bitnet_hal.kernels.catalogue import KV_TYPES, SILU
from bitnet_hal.reference.attention import decode_cache_rows
from bitnet_hal.reference.quantize import GROUP_FLOOR
from bitnet_hal.testing.cases.case import Array, Arrays, Case, CaseLaunch
from bitnet_hal.testing.compare_head import check_packed, check_refined
from bitnet_hal.testing.compare_rotated import check_rotated
from bitnet_hal.testing.tolerances import TOLERANCES, Tolerance

_JUDGED = {"pack_head": ("codes", "error"), "refine_logits": ("logits",)}
"""Outputs with more than one correct answer, by kernel; `compare_head` checks them."""

F64 = npt.NDArray[np.float64]


def check_outputs(case: Case, launch: CaseLaunch, expected: Arrays, actual: Arrays) -> None:
    """Raise AssertionError unless every written binding matches the reference within the kernel's tolerance."""
    tolerance = Tolerance() if case.exact else TOLERANCES[case.kernel]
    for binding in case.spec.bindings:
        name = binding.name
        if binding.access == "r":
            continue
        if case.kernel.endswith("_quantize") and name in ("q", "qsum"):
            continue  # checked together below
        if case.kernel == "decoder_layer" and name in ("qkv", "heads", "m"):
            continue  # scratch, undefined after the launch
        if name in _JUDGED.get(case.kernel, ()):
            continue  # checked by compare_head
        row = _row_length(launch, name, expected[name].size)
        if name.endswith("_cache"):
            _check_cache(case, launch, name, expected[name], actual[name], tolerance)
        elif binding.dtype == "f32":
            allowed = TOLERANCES.get(f"{case.kernel}.{name}", tolerance)
            untouched = launch.arrays[name].view(np.uint32) == expected[name].view(np.uint32)
            untouched &= ~np.isnan(expected[name])  # adding to a NaN may change its bits
            _check_floats(f"{case.id}: {name}", expected[name], actual[name], allowed, row, untouched)
        else:
            _check_equal(f"{case.id}: {name}", expected[name], actual[name], row)
    if case.kernel.endswith("norm_quantize") or case.kernel == "clamp_glu_quantize":
        _check_codes(case, launch, expected, actual, tolerance)
    elif case.kernel.endswith("rotate_quantize"):
        check_rotated(case.id, case.kernel, launch, expected, actual, tolerance.codes)
    elif case.kernel == "pack_head":
        check_packed(case.id, launch, actual)
    elif case.kernel == "refine_logits":
        check_refined(case.id, launch, actual["logits"])


def _row_length(launch: CaseLaunch, name: str, size: int) -> int:
    if name == "y" and "y_stride" in launch.params:
        return int(launch.params["y_stride"])
    if name == "state":
        return int(launch.params["value_dim" if "value_dim" in launch.params else "channels"])
    return max(1, size // int(launch.params.get("rows", 1)))


def _where(flat: int, row: int) -> str:
    return f"row {flat // row}, column {flat % row}"


def _check_equal(what: str, expected: Array, actual: Array, row: int = 1) -> None:
    wrong = np.flatnonzero(expected != actual)
    assert not wrong.size, (
        f"{what}: {wrong.size} of {expected.size} values differ; first at {_where(int(wrong[0]), row)}: "
        f"expected {expected[wrong[0]]}, got {actual[wrong[0]]}"
    )


def _check_floats(
    what: str, expected: Array, actual: Array, tolerance: Tolerance, row: int, untouched: Array | None = None
) -> None:
    """Compare f32 outputs; values that the reference does not write must keep their bits."""
    if untouched is not None:
        changed = np.flatnonzero(untouched & (expected.view(np.uint32) != actual.view(np.uint32)))
        assert not changed.size, (
            f"{what}: {changed.size} values that the kernel must not write were changed; first at "
            f"{_where(int(changed[0]), row)}"
        )
    nan = np.isnan(expected)
    _check_nan(what, nan, np.isnan(actual), row)
    with np.errstate(all="ignore"):
        finite = np.where(np.isfinite(expected), np.abs(expected), 0).astype(np.float64)
        scale = np.repeat(finite.reshape(-1, row).max(axis=1), row)
        error = np.abs(actual.astype(np.float64) - expected)
        allowed = tolerance.relative * finite + tolerance.scaled * scale
        right = nan | (actual == expected) | (error <= allowed)
    if not right.all():
        worst = int(np.argmax(np.where(right, 0, np.where(np.isnan(error), np.inf, error / np.maximum(scale, 1e-30)))))
        raise AssertionError(
            f"{what}: {int((~right).sum())} of {expected.size} values are wrong; worst at {_where(worst, row)}: "
            f"expected {expected[worst]!r}, got {actual[worst]!r}, allowed difference {allowed[worst]:.3g}"
        )


def _check_nan(what: str, expected: Array, actual: Array, row: int) -> None:
    lost = np.flatnonzero(expected & ~actual)
    new = np.flatnonzero(actual & ~expected)
    assert not lost.size, f"{what}: {lost.size} NaN are missing; first at {_where(int(lost[0]), row)}"
    assert not new.size, f"{what}: {new.size} NaN are unexpected; first at {_where(int(new[0]), row)}"


def _rounding(what: str, exact: F64, codes: Array, tolerance: float, row: int) -> None:
    """Check that each code is its exact value rounded to nearest, except within `tolerance` of a tie."""
    distance = np.abs(codes - exact)
    wrong = np.flatnonzero(~(distance <= 0.5 + tolerance))
    assert not wrong.size, (
        f"{what}: {wrong.size} of {codes.size} codes are not the nearest; first at {_where(int(wrong[0]), row)}: "
        f"{exact[wrong[0]]:.4f} became {codes[wrong[0]]}"
    )


def _exact_codes(case: Case, launch: CaseLaunch, rows: int, width: int) -> F64:
    """Return y * 127 / absmax in f64, by the formulas of the catalogue; rows that become NaN hold arbitrary values."""
    p = launch.params
    a = {name: array.astype(np.float64) for name, array in launch.arrays.items() if name != "q"}
    if case.kernel == "glu_norm_quantize":
        gate, up = np.split(a["gate_up"].reshape(rows, 2 * width), 2, axis=1)
        y = (gate / (1 + np.exp(-gate)) if launch.constants["ACT"] == SILU else np.maximum(gate, 0) ** 2) * up
    elif case.kernel == "clamp_glu_quantize":
        gate, up = np.split(a["gate_up"].reshape(rows, 2 * width), 2, axis=1)
        gate = np.minimum(gate, p["limit"])
        y = gate / (1 + np.exp(-gate)) * np.clip(up, -p["limit"], p["limit"])
    else:
        y = a["x"].reshape(rows, width)
    if launch.constants.get("NORM"):
        y = y / np.sqrt(np.mean(y * y, axis=1, keepdims=True) + p["eps"]) * a["gamma"]
    group_size = launch.constants["ABLOCK"]
    if not group_size:
        absmax = np.maximum(np.abs(y).max(axis=1, keepdims=True), 1e-5)
        return np.asarray(np.clip(y * 127 / absmax, -128, 127))
    whole = np.pad(y, ((0, 0), (0, -width % group_size))).reshape(rows, -1, group_size)
    codes = whole * 127 / np.maximum(np.abs(whole).max(axis=2, keepdims=True), GROUP_FLOOR)
    return np.asarray(codes.reshape(rows, -1)[:, :width])


def _check_codes(case: Case, launch: CaseLaunch, expected: Arrays, actual: Arrays, tolerance: Tolerance) -> None:
    """Check q and qsum: nearest codes, zero padding, qsum the sum of the device's own codes, zeros in rows that hold
    NaN."""
    rows, width, stride = (int(launch.params[name]) for name in ("rows", "width", "stride"))
    q = actual["q"][: rows * stride].reshape(rows, stride)
    padding = np.flatnonzero(q[:, width:].any(axis=1))
    assert not padding.size, f"{case.id}: q is not 0 in the padding columns of row {padding[0]}"
    per_row = len(actual["scale"]) // rows
    sums = q.reshape(rows * per_row, -1).sum(axis=1, dtype=np.int64)
    _check_equal(f"{case.id}: qsum against the sum of q", sums, actual["qsum"].astype(np.int64), per_row)
    spoiled = np.isnan(expected["scale"]).reshape(rows, per_row).any(axis=1)
    assert not q[spoiled].any(), f"{case.id}: rows with scale = NaN must have q = 0"
    with np.errstate(all="ignore"):
        exact = _exact_codes(case, launch, rows, width)
    sound = ~spoiled
    _rounding(f"{case.id}: q", exact[sound].reshape(-1), q[sound, :width].reshape(-1), tolerance.codes, width)
    if case.label == "ties" and (actual["scale"] == 1).all():
        # scale = 1 shows that 127 / absmax is exact on this device, so ties must round to the even code
        _check_equal(f"{case.id}: q, halves to even", expected["q"], actual["q"], stride)


def _check_cache(
    case: Case, launch: CaseLaunch, name: str, expected: Array, actual: Array, tolerance: Tolerance
) -> None:
    """Compare cache rows by type: f32 as any output, f16 within one step of f16, int8 as quantized activations."""
    head_dim = int(launch.params["head_dim"])
    row_bytes = int(launch.params["row_bytes"])
    kv = launch.constants["KV"]
    before, want, got = (x.reshape(-1, row_bytes) for x in (launch.arrays[name], expected, actual))
    written = (before != want).any(axis=1)
    stray = np.flatnonzero((before != got).any(axis=1) & ~written)
    assert not stray.size, f"{case.id}: {name} row {stray[0]} was written, but belongs to no row of the step"
    what = f"{case.id}: {name} ({KV_TYPES[kv]})"
    with np.errstate(all="ignore"):
        values, wanted = (_decoded(rows[written], kv, head_dim) for rows in (got, want))
    if kv == 2:
        _check_floats(f"{what}, scale", _scales(want[written]), _scales(got[written]), tolerance, 1)
        scale = np.maximum(_scales(want[written]), np.float32(1e-30))[:, None]
        step = np.abs(values - wanted) / scale
        assert (step <= 1 + 1e-3).all(), f"{what}: a code is more than one step from the expected one"
        off = int((step > 0.5).sum())
        few = 50 if case.kernel == "decoder_layer" else 1000
        assert off <= 1 + step.size // few, f"{what}: {off} of {step.size} codes are one step off: wrong rounding"
    elif case.kernel == "decoder_layer":
        # cached values are results of a product, which has its own rounding
        loose = Tolerance(scaled=2.0**-8 if kv == 1 else 1e-4)
        _check_floats(what, wanted.reshape(-1), values.reshape(-1), loose, head_dim)
    elif kv == 1 and name == "v_cache":
        _check_equal(what, wanted.reshape(-1), values.reshape(-1), head_dim)  # v is not rotated: rounded once
    else:
        step_of_f16 = 2.0**-10 if kv == 1 else 0.0
        loose = Tolerance(relative=tolerance.relative + step_of_f16, scaled=tolerance.scaled)
        _check_floats(what, wanted.reshape(-1), values.reshape(-1), loose, head_dim)
        wrong = int((values != wanted).sum()) if kv == 1 else 0
        assert wrong <= 1 + values.size // 100, f"{what}: {wrong} of {values.size} values are one step off"


def _decoded(rows: Array, kv: int, head_dim: int) -> npt.NDArray[np.float32]:
    return np.asarray(decode_cache_rows(rows, kv, head_dim))


def _scales(rows: Array) -> npt.NDArray[np.float32]:
    """Return the f32 scales at the start of int8 cache rows."""
    view: npt.NDArray[Any] = np.ascontiguousarray(rows[:, :4]).view("<f4").reshape(-1)
    return view
