"""Cases of route_experts, matmul_experts, clamp_glu_quantize and sum_experts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from bitnet_hal.kernels.sizes import SCALE_COLUMNS
from bitnet_hal.kernels.spec import ParamDict
from bitnet_hal.rounding import ceil_div
from bitnet_hal.testing.cases.case import BATCH_ROWS, Array, Case, CaseLaunch, Rng, blank
from bitnet_hal.testing.cases.data import activations, group_activations, normal, padded, ternary


def _route(rng: Rng, rows: int, experts: int, used: int, kind: str = "") -> CaseLaunch:
    logits = normal(rng, rows, experts) * np.float32(100 if kind == "large" else 3)
    if kind == "ties":
        logits = np.round(logits)
    if kind == "nan":
        logits[0, experts - 1] = np.nan
        logits[1, :used] = -np.inf
    return CaseLaunch(
        {"rows": rows, "experts": experts, "used": used},
        {"logits": logits, "ids": blank(rows * used, "i32"), "weights": blank(rows * used, "f32")},
    )


def _product(
    rng: Rng,
    rows: int,
    outs: int,
    columns: int,
    experts: int,
    used: int,
    block: int = 128,
    act_group: int = 32,
    each: bool = False,
    kind: str = "",
) -> CaseLaunch:
    """Build matmul_experts with `used` different experts per row. each: True for a row of q for every pair."""
    width = padded(columns)
    inputs = used if each else 1
    params: ParamDict = {"rows": rows, "outs": outs, "width": width, "y_stride": outs, "y_first": 0}
    params |= {"experts": experts, "used": used, "inputs": inputs}
    q, scale, qsum = _inputs(rng, rows * inputs, width, columns, act_group, kind)
    scales = experts * outs * ceil_div(width, block)
    wscale = _powers_of_two(rng, -1, scales) if kind == "exact" else rng.uniform(0.1, 2, scales).astype(np.float32)
    if kind == "part":
        params |= {"y_stride": 2 * outs + 3, "y_first": outs}
    return CaseLaunch(
        params,
        {
            "w": ternary(rng, experts * outs, width, columns),
            "wscale": wscale,
            "q": q,
            "scale": scale,
            "qsum": qsum,
            "ids": _ids(rng, rows, experts, used, kind),
            "y": normal(rng, rows * used, int(params["y_stride"])),
        },
        {"BLOCK": block, "ABLOCK": act_group},
    )


def _inputs(rng: Rng, rows: int, width: int, columns: int, act_group: int, kind: str) -> tuple[Array, Array, Array]:
    """Return (q, scale, qsum). exact: scales are powers of two; nan: the scale of row 1, whose q is 0."""
    if act_group:
        q, scale, qsum = group_activations(rng, rows, width, columns, act_group)
    else:
        q, scale, qsum = activations(rng, rows, width, columns)
    if kind == "exact":
        scale = _powers_of_two(rng, -2, (rows, width // (act_group or width)))
        scale = scale.repeat(act_group // SCALE_COLUMNS if act_group else 1, axis=1)
    if kind == "nan":
        scale[1] = np.nan
        q[1] = 0
        qsum[1] = 0
    return q, scale, qsum


def _ids(rng: Rng, rows: int, experts: int, used: int, kind: str) -> Array:
    """Return the experts of each row, i64[rows, used]. one: the same in every row; stray: two that do not exist."""
    if kind == "one":
        return np.tile(np.arange(used), (rows, 1))
    ids = np.stack([rng.permutation(experts)[:used] for _ in range(rows)])
    if kind == "stray":
        ids[0, 0] = -1
        ids[rows - 1, used - 1] = experts
    return ids


def _powers_of_two(rng: Rng, lowest: int, shape: int | tuple[int, int]) -> npt.NDArray[np.float32]:
    """Return scales from 2^lowest to 2, so that sums of products are exact."""
    return np.exp2(rng.integers(lowest, 2, shape)).astype(np.float32)


def _clamp(rng: Rng, rows: int, width: int, limit: float, act_group: int = 32, kind: str = "") -> CaseLaunch:
    stride = padded(width)
    gate_up = normal(rng, rows, 2 * width) * np.float32(6)
    if kind == "nan":
        gate_up[0, 1] = np.nan
        gate_up[1, 2 * width - 1] = np.nan
        gate_up[2, width] = -np.inf  # clamped, and so no reason for NaN
    scales = rows * (stride // SCALE_COLUMNS if act_group else 1)
    return CaseLaunch(
        {"rows": rows, "width": width, "stride": stride, "limit": limit},
        {
            "gate_up": gate_up,
            "q": blank(rows * stride, "i8"),
            "scale": blank(scales, "f32"),
            "qsum": blank(scales, "i32"),
        },
        {"ABLOCK": act_group},
    )


def _sum(rng: Rng, rows: int, width: int, used: int, kind: str = "") -> CaseLaunch:
    y = normal(rng, rows * used, width)
    if kind == "nan":
        y[used, 0] = np.nan
    weights = np.full((rows, used), 1 / used) if kind == "even" else rng.uniform(0, 1, (rows, used))
    x = normal(rng, rows, width) * np.float32(kind != "even")
    return CaseLaunch({"rows": rows, "width": width, "used": used}, {"y": y, "weights": weights, "x": x})


def cases() -> Iterator[Case]:
    """Yield sizes of real models and odd ones, few and many rows, ties, NaN, and experts that do not exist."""
    name = "route_experts"
    for rows, experts, used in ((1, 256, 8), (3, 5, 2), (2, 1, 1), (33, 128, 6), (2, 40, 40), (1, 600, 256)):
        yield Case(name, f"t{rows}-e{experts}-u{used}", _route, (rows, experts, used))
    for kind in ("ties", "large", "nan"):
        yield Case(name, kind, _route, (7, 24, 4, kind))
    yield from _products()
    name = "clamp_glu_quantize"
    for act_group in (0, 32, 128):
        yield Case(name, f"a{act_group}-t3-k384", _clamp, (3, 384, 7.0, act_group))
        yield Case(name, f"a{act_group}-odd", _clamp, (2, 77, 3.5, act_group))
        yield Case(name, f"a{act_group}-nan", _clamp, (4, 130, 7.0, act_group, "nan"))
    yield Case(name, "wide", _clamp, (1, 6912, 7.0))
    yield Case(name, "no-limit", _clamp, (2, 256, float("inf")))
    name = "sum_experts"
    for rows, width, used in ((1, 2048, 8), (5, 33, 3), (2, 1, 1), (40, 256, 6)):
        yield Case(name, f"t{rows}-k{width}-u{used}", _sum, (rows, width, used))
    yield Case(name, "nan", _sum, (3, 20, 2, "nan"))
    yield Case(name, "even", _sum, (3, 20, 4, "even"))


def _products() -> Iterator[Case]:
    name = "matmul_experts"
    for block in (64, 128, 256):
        for act_group in (0, 32, 128):
            yield Case(name, f"a{act_group}-b{block}-t1", _product, (1, 70, 640, 9, 4, block, act_group))
    for rows, outs, columns, experts, used in (
        *((1, 33, 256, 256, 8), (2, 65, 384, 5, 2), (3, 7, 2048, 3, 3), (8, 40, 640, 16, 6)),
        *((33, 31, 320, 7, 2), (150, 70, 256, 12, 3), (64, 17, 1536, 64, 8), (40, 3, 128, 1, 1)),
    ):
        label = f"t{rows}-n{outs}-k{columns}-e{experts}-u{used}"
        yield Case(name, label, _product, (rows, outs, columns, experts, used))
        yield Case(name, f"each-{label}", _product, (rows, outs, columns, experts, used, 128, 32, True))
    for rows in (1, 9):
        exact = (rows, 33, 640, 6, 2, 128, 32, True, "exact")
        yield Case(name, f"exact-t{rows}", _product, exact, exact=True)
    for kind in ("stray", "one", "part", "nan"):
        yield Case(name, kind, _product, (5, 40, 256, 6, 2, 128, 32, False, kind))
        yield Case(name, f"{kind}-t40", _product, (40, 40, 256, 6, 2, 64, 32, False, kind))


def batches() -> Iterator[Case]:
    """Yield rows for the rule of batch invariance: each row shares its experts with others."""
    yield Case("route_experts", "batch", _route, (BATCH_ROWS, 48, 6))
    for block in (64, 128, 256):
        yield Case("matmul_experts", f"batch-b{block}", _product, (BATCH_ROWS, 70, 640, 8, 3, block))
    yield Case("matmul_experts", "batch-each", _product, (BATCH_ROWS, 70, 640, 8, 3, 128, 32, True))
    yield Case("matmul_experts", "batch-a0", _product, (BATCH_ROWS, 70, 640, 8, 3, 128, 0))
    yield Case("clamp_glu_quantize", "batch", _clamp, (BATCH_ROWS, 200, 7.0))
    yield Case("sum_experts", "batch", _sum, (BATCH_ROWS, 200, 6))
