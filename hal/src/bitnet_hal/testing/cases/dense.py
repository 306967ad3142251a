"""Cases of matmul_dense."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bitnet_hal.kernels.catalogue import DENSE_TYPES
from bitnet_hal.testing.cases.case import BATCH_ROWS, Case, CaseLaunch, Rng, blank
from bitnet_hal.testing.cases.data import dense_table, normal


def _build(rng: Rng, rows: int, outs: int, width: int, dtype: int) -> CaseLaunch:
    return CaseLaunch(
        {"rows": rows, "outs": outs, "width": width, "y_stride": outs, "y_first": 0},
        {
            "x": normal(rng, rows, width),
            "w": dense_table(rng, outs, width, dtype),
            "y": blank(rows * outs, "f32"),
        },
        {"DTYPE": dtype},
    )


def _part_of_y(rng: Rng, dtype: int) -> CaseLaunch:
    launch = _build(rng, 5, 33, 256, dtype)
    launch.params.update(y_stride=90, y_first=41)
    launch.arrays["y"] = normal(rng, 5, 90)
    return launch


def _spoiled(rng: Rng) -> CaseLaunch:
    launch = _build(rng, 5, 40, 256, 1)
    x = launch.arrays["x"]
    x[1, 255] = np.nan
    x[2] = 0
    x[3] *= np.float32(1e30)
    x[4] *= np.float32(1e-30)
    return launch


def cases() -> Iterator[Case]:
    """Yield each table type, shapes around a tile, parts of y, rows with NaN and extreme values."""
    name = "matmul_dense"
    for dtype, label in enumerate(DENSE_TYPES):
        for t, n, k in ((1, 33, 2560), (2, 31, 256), (7, 65, 512), (33, 5, 256)):
            yield Case(name, f"{label}-t{t}-n{n}-k{k}", _build, (t, n, k, dtype))
    for dtype, k in ((0, 1), (0, 129), (1, 127), (2, 65), (3, 96)):
        yield Case(name, f"{DENSE_TYPES[dtype]}-odd-k{k}", _build, (8, 32, k, dtype))
    for t, n, k in ((16, 130, 320), (70, 200, 128)):
        yield Case(name, f"f16-t{t}-n{n}-k{k}", _build, (t, n, k, 1))
    for dtype, t in ((0, 1), (1, 1), (2, 1), (1, 5), (1, 40)):
        yield Case(name, f"gates-{DENSE_TYPES[dtype]}-t{t}", _build, (t, 96, 1028, dtype))
    for t, k in ((1, 1032), (5, 520), (6, 1088), (33, 576)):
        yield Case(name, f"head-t{t}", _build, (t, 301, k, 1))
    yield Case(name, "wide", _build, (1, 32, 8640, 1))
    yield Case(name, "prompt", _build, (512, 9, 64, 1))
    yield Case(name, "many-outs", _build, (1, 70001, 32, 1))
    yield Case(name, "part-of-y", _part_of_y, (1,))
    yield Case(name, "part-of-y-q6_K", _part_of_y, (4,))
    yield Case(name, "spoiled-rows", _spoiled)


def batches() -> Iterator[Case]:
    """Yield rows of dense products for the rule of batch invariance."""
    for dtype, label in enumerate(DENSE_TYPES):
        yield Case("matmul_dense", f"batch-{label}", _build, (BATCH_ROWS, 70, 512, dtype))
    yield Case("matmul_dense", "batch-head", _build, (BATCH_ROWS, 301, 576, 1))
    yield Case("matmul_dense", "batch-odd", _build, (BATCH_ROWS, 70, 127, 1))
