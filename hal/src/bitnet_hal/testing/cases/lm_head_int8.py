"""Cases of pack_head, approx_logits and refine_logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from bitnet_hal.kernels.lm_head_int8 import HEAD_GROUP
from bitnet_hal.reference.lm_head_int8 import approx_logits, pack_head
from bitnet_hal.rounding import ceil_div
from bitnet_hal.testing.cases.case import BATCH_ROWS, Array, Arrays, Case, CaseLaunch, Rng, blank
from bitnet_hal.testing.cases.data import normal

Edit = Callable[[Array], None]
"""Changes the head w f16[outs, width], or x f32[rows, width], in place."""


def _head(rng: Rng, outs: int, width: int, edit: Edit | None = None) -> Array:
    """Return a head whose rows differ in norm by a factor of four."""
    table = (normal(rng, outs, width) * rng.uniform(0.25, 1, (outs, 1))).astype(np.float16)
    if edit:
        edit(table)
    return table


def _pack(rng: Rng, outs: int, width: int, edit: Edit | None = None) -> CaseLaunch:
    return CaseLaunch(
        {"outs": outs, "width": width},
        {
            "w": _head(rng, outs, width, edit).view(np.uint8),
            "codes": blank(outs * width, "i8"),
            "scale": blank(outs, "f32"),
            "error": blank(outs, "f32"),
        },
    )


def _packed(rng: Rng, rows: int, outs: int, width: int, stride: int, edit: Edit | None) -> tuple[CaseLaunch, Arrays]:
    """Return a packed head, with x, logits, bound and w."""
    launch = _pack(rng, outs, width)
    with np.errstate(all="ignore"):
        pack_head(launch.arrays, launch.params, {})
    x = normal(rng, rows, width)
    if edit:
        edit(x)
    return CaseLaunch({"rows": rows, "outs": outs, "width": width, "stride": stride or outs}, {}), {
        **launch.arrays,
        "x": x,
        "logits": normal(rng, rows, stride or outs).reshape(-1),
        "bound": np.empty(rows * ceil_div(outs, HEAD_GROUP), np.float32),
    }


def _approx(rng: Rng, rows: int, outs: int, width: int, stride: int = 0, edit: Edit | None = None) -> CaseLaunch:
    launch, arrays = _packed(rng, rows, outs, width, stride, edit)
    arrays["bound"] = blank(arrays["bound"].size, "f32")
    return CaseLaunch(launch.params, arrays)


def _refine(
    rng: Rng, rows: int, outs: int, width: int, k: int, stride: int = 0, edit: Edit | None = None
) -> CaseLaunch:
    """Build refine_logits with the approximate logits and bounds of the numpy reference."""
    launch, arrays = _packed(rng, rows, outs, width, stride, edit)
    flat = {name: np.ascontiguousarray(array).reshape(-1) for name, array in arrays.items()}
    with np.errstate(all="ignore"):
        approx_logits(flat, launch.params, {})
    return CaseLaunch(launch.params | {"k": k}, flat)


def _spoiled_head(table: Array) -> None:
    """Set rows to zeros, a NaN, an Inf, and the smallest and largest f16 numbers."""
    table[0] = 0
    table[3, 5] = np.nan
    table[4, -1] = -np.inf
    table[6] = np.float16(6e-8)
    table[7] = np.float16(65504)


def _spoiled_x(x: Array) -> None:
    """Set rows to zeros, a NaN, an Inf, and large values."""
    x[0] = 0
    x[1, 3] = np.nan
    x[2, -1] = np.inf
    x[3] *= np.float32(1e10)


def cases() -> Iterator[Case]:
    """Yield sizes around a group of rows and a workgroup, one row and several, strides, rows with NaN."""
    for outs, width in ((1, 4), (63, 128), (65, 260), (200, 2560), (70001, 16)):
        yield Case("pack_head", f"n{outs}-k{width}", _pack, (outs, width))
    yield Case("pack_head", "spoiled", _pack, (70, 256, _spoiled_head))
    name = "approx_logits"
    for rows, outs, width in ((1, 1, 4), (1, 63, 128), (2, 65, 260), (8, 500, 256), (1, 300, 2560), (1, 70001, 16)):
        yield Case(name, f"l{rows}-n{outs}-k{width}", _approx, (rows, outs, width))
    for rows, outs, width in ((9, 300, 2560), (17, 600, 272), (40, 2100, 144), (64, 300, 640)):
        yield Case(name, f"l{rows}-n{outs}-k{width}", _approx, (rows, outs, width))
    yield Case(name, "stride", _approx, (3, 130, 128, 141))
    yield Case(name, "spoiled", _approx, (4, 130, 128, 0, _spoiled_x))
    name = "refine_logits"
    for rows, outs, width, k in ((1, 1, 4, 1), (1, 500, 128, 1), (2, 650, 260, 1), (8, 500, 256, 1), (1, 70001, 16, 1)):
        yield Case(name, f"l{rows}-n{outs}-k{width}-top{k}", _refine, (rows, outs, width, k))
    for rows, outs, width, k in ((1, 5000, 256, 64), (2, 3000, 128, 8), (1, 500, 128, 8), (1, 500, 128, 40)):
        yield Case(name, f"l{rows}-n{outs}-k{width}-top{k}", _refine, (rows, outs, width, k))
    yield Case(name, "l20-n9000-k64-top1", _refine, (20, 9000, 64, 1))
    yield Case(name, "stride", _refine, (3, 700, 128, 1, 711))
    yield Case(name, "spoiled", _refine, (4, 700, 128, 1, 0, _spoiled_x))


def batches() -> Iterator[Case]:
    """Yield rows for the rule of batch invariance."""
    yield Case("approx_logits", "batch", _approx, (BATCH_ROWS, 300, 256))
    yield Case("refine_logits", "batch", _refine, (BATCH_ROWS, 300, 256, 1))
