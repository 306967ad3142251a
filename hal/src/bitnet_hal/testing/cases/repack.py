"""Cases of repack_q2_0."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bitnet_hal.kernels.repack import block_bytes
from bitnet_hal.testing.cases.case import Case, CaseLaunch, Rng
from bitnet_hal.testing.cases.data import padded


def _build(rng: Rng, rows: int, columns: int, block: int, first: int = 0, last: str = "") -> CaseLaunch:
    """Build blocks of ternary codes; every third but the last has a scale of 0 or -0 and any codes. last: what is odd
    about the last one: "three" for a code of 3, "zeros" for no code but 1."""
    width = padded(columns)
    count = rows * columns // block
    codes = rng.integers(0, 3, (count, block))
    codes[2::3] = rng.integers(0, 4, (len(codes[2::3]), block))
    codes[-1] = 1 if last else rng.integers(0, 3, block)
    if last == "three":
        codes[-1, block // 3] = 3
    scales = rng.uniform(1e-7, 2, count).astype("<f2")
    scales[2::3] = np.resize([0, -0.0], len(scales[2::3]))
    scales[-1] = 0.5
    blocks = np.empty((count, block_bytes(block)), np.uint8)
    blocks[:, :2] = scales.view(np.uint8).reshape(-1, 2)
    blocks[:, 2:] = np.bitwise_or.reduce(codes.reshape(count, -1, 4) << np.array([0, 2, 4, 6]), axis=2)
    return CaseLaunch(
        {"rows": rows, "columns": columns, "width": width, "first": first},
        {"blocks": blocks, "w": rng.integers(0, 256, (first + rows) * width // 4), "odd": np.zeros(1, np.int32)},
        {"BLOCK": block},
    )


def cases() -> Iterator[Case]:
    """Yield rows of few and of many blocks, rows that end within a group of 128 columns, and odd last blocks."""
    name = "repack_q2_0"
    for block in (64, 128):
        for rows, columns in ((1, block), (3, 384), (5, 2560), (33, 640), (2, 17408)):
            yield Case(name, f"b{block}-t{rows}-k{columns}", _build, (rows, columns, block))
        yield Case(name, f"b{block}-first", _build, (4, 256, block, 3))
        for last in ("three", "zeros"):
            yield Case(name, f"b{block}-{last}", _build, (7, 1280, block, 1, last))
    for rows, columns in ((2, 192), (5, 2624)):
        yield Case(name, f"padding-t{rows}-k{columns}", _build, (rows, columns, 64, 1))
