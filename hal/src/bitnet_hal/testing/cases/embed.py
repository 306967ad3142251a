"""Cases of embed_rows and embed_rows_ternary."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bitnet_hal.kernels.catalogue import DENSE_TYPES
from bitnet_hal.rounding import ceil_div
from bitnet_hal.testing.cases.case import Case, CaseLaunch, Rng
from bitnet_hal.testing.cases.data import dense_table, normal, padded, step_rows, ternary


def _build(rng: Rng, rows: int, hidden: int, dtype: int, first: int = 0, count: int = 50) -> CaseLaunch:
    tokens = rng.integers(-1, first + count + 20, rows) if first else rng.integers(0, count, rows)
    tokens[: min(rows, 2)] = (first, first + count - 1)[:rows]
    used = np.zeros(rows, dtype=np.int64)
    return CaseLaunch(
        {"rows": rows, "hidden": hidden, "first": first, "count": count},
        {
            "table": dense_table(rng, count, hidden, dtype),
            "step": step_rows(tokens, used, used, used),
            "x": normal(rng, rows, hidden),
        },
        {"DTYPE": dtype},
    )


def _ternary(rng: Rng, rows: int, hidden: int, block: int, first: int = 0, count: int = 50) -> CaseLaunch:
    launch = _build(rng, rows, hidden, 0, first, count)
    width = padded(hidden)
    scales = rng.uniform(0.1, 2, (count, ceil_div(width, block)))
    scales[count // 2] = 0
    arrays = {name: launch.arrays[name] for name in ("step", "x")}
    return CaseLaunch(
        launch.params | {"width": width},
        {"w": ternary(rng, count, width, hidden), "wscale": scales, **arrays},
        {"BLOCK": block},
    )


def cases() -> Iterator[Case]:
    """Yield all five table types, widths that fill no workgroup, a table bound in parts."""
    for dtype, widths in (
        (0, (1, 127, 2560)),
        (1, (63, 128, 129)),
        (2, (65, 257)),
        (3, (32, 96, 2560)),
        (4, (256, 2560)),
    ):
        for hidden in widths:
            yield Case("embed_rows", f"{DENSE_TYPES[dtype]}-h{hidden}", _build, (7, hidden, dtype))
    for rows in (1, 2, 33, 512):
        yield Case("embed_rows", f"t{rows}", _build, (rows, 64, 1))
    yield Case("embed_rows", "part-of-table", _build, (33, 128, 1, 1000))
    yield Case("embed_rows", "part-of-q6_K-table", _build, (33, 256, 4, 7))
    name = "embed_rows_ternary"
    for block in (64, 128, 256):
        for hidden in (1, 127, 128, 320, 2560):
            yield Case(name, f"b{block}-h{hidden}", _ternary, (7, hidden, block))
    yield Case(name, "t512", _ternary, (512, 128, 128))
    yield Case(name, "part-of-table", _ternary, (33, 256, 64, 1000))
