"""Cases of matmul_ternary and matmul_ternary_block."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bitnet_hal.kernels.sizes import SCALE_COLUMNS
from bitnet_hal.rounding import ceil_div
from bitnet_hal.testing.cases.case import BATCH_ROWS, Case, CaseLaunch, Rng, blank
from bitnet_hal.testing.cases.data import (
    activations,
    group_activations,
    normal,
    pack_codes,
    padded,
    powers_of_two,
    ternary,
)

SHAPES = (
    (1, 1, 128),
    (1, 31, 256),
    (2, 32, 384),
    (7, 33, 640),
    (8, 65, 2560),
    (20, 40, 640),
    (32, 70, 256),
    (33, 127, 384),
    (512, 17, 256),
    (1, 130, 8640),
    (33, 3, 8640),
    (40, 66, 6912),
)
"""(T, N, K) around tiles of 32 and 64, up to the widest feed-forward layer; K = 8640 is padded to 8704."""


def _build(rng: Rng, rows: int, outs: int, columns: int, add: int = 0, exact: bool = False) -> CaseLaunch:
    width = padded(columns)
    q, scale, qsum = activations(rng, rows, width, columns)
    wscale = rng.uniform(0.1, 2, outs).astype(np.float32)
    if exact:
        scale = powers_of_two(rng, rows)
        wscale = powers_of_two(rng, outs)
    return CaseLaunch(
        {"rows": rows, "outs": outs, "width": width, "y_stride": outs, "y_first": 0},
        {
            "w": ternary(rng, outs, width, columns),
            "wscale": wscale,
            "q": q,
            "scale": scale,
            "qsum": qsum,
            "y": blank(rows * outs, "f32") if exact else normal(rng, rows, outs),
        },
        {"ADD": add},
    )


def _part_of_y(rng: Rng, add: int, block: int = 0) -> CaseLaunch:
    """Write columns 13..52 of y[5, 100]."""
    launch = _block(rng, 5, 40, 256, block, add) if block else _build(rng, 5, 40, 256, add)
    launch.params.update(y_stride=100, y_first=13)
    launch.arrays["y"] = normal(rng, 5, 100)
    return launch


def _largest_sums(rng: Rng) -> CaseLaunch:
    """Give all products the same sign, for sums that neither 16 bits nor f16 can hold."""
    launch = _build(rng, 2, 4, 8704, exact=True)
    q = np.full((2, 8704), -128, dtype=np.int8)
    q[1] = 127
    launch.arrays.update(q=q, qsum=q.sum(axis=1, dtype=np.int32), scale=np.ones(2), wscale=np.ones(4))
    launch.arrays["w"] = pack_codes(np.repeat([[0], [1], [2], [2]], 8704, axis=1))
    return launch


def _spoiled_rows(rng: Rng) -> CaseLaunch:
    """Mark rows by scale = NaN, which must stay NaN; all-zero rows must give 0 for any scale."""
    launch = _build(rng, 7, 33, 256)
    q = launch.arrays["q"]
    scale = launch.arrays["scale"]
    qsum = launch.arrays["qsum"]
    scale[1] = np.nan
    q[1:3] = 0
    qsum[1:3] = 0
    return launch


def _block(
    rng: Rng, rows: int, outs: int, columns: int, block: int, add: int = 0, exact: bool = False, act_group: int = 0
) -> CaseLaunch:
    launch = _build(rng, rows, outs, columns, add, exact)
    width = padded(columns)
    count = outs * ceil_div(width, block)
    launch.arrays["wscale"] = np.exp2(rng.integers(-1, 2, count)) if exact else rng.uniform(0.1, 2, count)
    launch.constants.update(BLOCK=block, ABLOCK=act_group)
    if act_group:
        q, scale, qsum = group_activations(rng, rows, width, columns, act_group)
        if exact:
            scale = np.exp2(rng.integers(-2, 2, (rows, width // act_group))).astype(np.float32)
            scale = scale.repeat(act_group // SCALE_COLUMNS, axis=1)
        launch.arrays.update(q=q, scale=scale, qsum=qsum)
    return launch


def _spoiled_blocks(rng: Rng, act_group: int) -> CaseLaunch:
    """Mark a row by NaN in all its scales; a weight group of scale 0 and all-zero rows must give exact zeros."""
    launch = _block(rng, 5, 33, 384, 128, act_group=act_group)
    q, scale, qsum = (launch.arrays[name] for name in ("q", "scale", "qsum"))
    scale[1] = np.nan
    q[1:3] = 0
    qsum[1:3] = 0
    launch.arrays["wscale"].reshape(33, 3)[4:7, 1] = 0
    return launch


def cases() -> Iterator[Case]:
    """Yield shapes, ADD, parts of y, padding, exact products."""
    name = "matmul_ternary"
    for t, n, k in SHAPES:
        yield Case(name, f"t{t}-n{n}-k{k}", _build, (t, n, k))
    for t, n, k in ((1, 64, 2560), (7, 33, 256), (20, 34, 384), (33, 65, 640), (70, 130, 384)):
        yield Case(name, f"exact-t{t}-n{n}-k{k}", _build, (t, n, k, 0, True), exact=True)
        yield Case(name, f"add-t{t}-n{n}-k{k}", _build, (t, n, k, 1))
    for add in (0, 1):  # whole tiles of rows, as in models, and more column blocks than a pipeline has stages
        yield Case(name, f"prompt-t150-n320-k1536-add{add}", _build, (150, 320, 1536, add))
    yield Case(name, "exact-t257-n288-k256", _build, (257, 288, 256, 0, True), exact=True)
    yield Case(name, "exact-t20-n8300-k384", _build, (20, 8300, 384, 0, True), exact=True)
    yield Case(name, "add-t6-n8200-k256", _build, (6, 8200, 256, 1))
    yield Case(name, "many-outs", _build, (1, 70001, 128, 0, True), exact=True)
    yield Case(name, "part-of-y", _part_of_y, (0,))
    yield Case(name, "add-part-of-y", _part_of_y, (1,))
    yield Case(name, "largest-sums", _largest_sums, exact=True)
    yield Case(name, "spoiled-rows", _spoiled_rows)
    name = "matmul_ternary_block"
    for block in (64, 128, 256):
        for t, n, k in ((1, 33, 640), (8, 31, 2560), (33, 7, 384)):
            yield Case(name, f"b{block}-t{t}-n{n}-k{k}", _block, (t, n, k, block))
        yield Case(name, f"b{block}-exact", _block, (2, 33, 640, block, 0, True), exact=True)
        yield Case(name, f"b{block}-add", _block, (7, 33, 256, block, 1))
    yield Case(name, "wide", _block, (1, 65, 8640, 128))
    yield Case(name, "prompt", _block, (512, 5, 128, 64))
    yield Case(name, "add-t70", _block, (70, 130, 384, 64, 1))
    yield from _activation_group_sizes(name)
    yield Case(name, "part-of-y", _part_of_y, (0, 64))
    yield Case(name, "add-part-of-y", _part_of_y, (1, 256))


def _activation_group_sizes(name: str) -> Iterator[Case]:
    """Yield groups of activations of 32 and 128 columns, with each group size of weights."""
    for block in (64, 128, 256):
        for t, n, k in ((1, 33, 640), (2, 130, 320), (8, 31, 2560), (33, 70, 384), (70, 130, 256)):
            yield Case(name, f"a32-b{block}-t{t}-n{n}-k{k}", _block, (t, n, k, block, 0, False, 32))
        yield Case(name, f"a32-b{block}-exact", _block, (2, 33, 640, block, 0, True, 32), exact=True)
        yield Case(name, f"a32-b{block}-add", _block, (7, 33, 256, block, 1, False, 32))
    for t, n, k, block in ((9, 200, 1536, 128), (24, 65, 2176, 256), (64, 70, 4224, 128), (33, 16930, 128, 128)):
        yield Case(name, f"a32-b{block}-batch-t{t}-n{n}-k{k}", _block, (t, n, k, block, t % 2, False, 32))
    yield Case(name, "a32-wide", _block, (1, 65, 8640, 128, 0, False, 32))
    yield Case(name, "a32-prompt", _block, (512, 5, 128, 128, 0, False, 32))
    yield Case(name, "a32-add-t70", _block, (70, 130, 384, 64, 1, False, 32))
    prompts = ((128, 0, 32), (64, 1, 32), (64, 0, 0), (128, 1, 0), (128, 0, 128), (64, 1, 128), (256, 0, 128))
    for block, add, act_group in prompts:  # shapes as in matmul_ternary's prompts
        case = (150, 320, 1536, block, add, False, act_group)
        yield Case(name, f"a{act_group}-b{block}-prompt-t150-n320-k1536-add{add}", _block, case)
    yield Case(name, "a32-many-outs", _block, (1, 70001, 128, 128, 0, True, 32), exact=True)
    yield Case(name, "a32-spoiled-rows", _spoiled_blocks, (32,))
    yield Case(name, "a128-spoiled-rows", _spoiled_blocks, (128,))
    for t, n, k in ((1, 33, 640), (8, 31, 2560), (33, 70, 384), (70, 130, 256)):
        yield Case(name, f"a128-t{t}-n{n}-k{k}", _block, (t, n, k, 128, 0, False, 128))
    rows_of_models = (
        *((328, 1536, 128, 0, 128), (328, 1536, 256, 1, 128), (104, 6656, 128, 1, 0), (16, 11776, 128, 0, 128)),
        (8, 17408, 256, 1, 0),
    )
    for n, k, block, add, ablock in rows_of_models:  # one text, and weights that are whole groups of rows and columns
        case = (1, n, k, block, add, False, ablock)
        yield Case(name, f"a{ablock}-b{block}-row-n{n}-k{k}-add{add}", _block, case)
    yield Case(name, "a128-exact-row", _block, (1, 1064, 512, 128, 1, True, 128), exact=True)
    for rows in (2, 150):
        yield Case(name, f"a128-exact-t{rows}", _block, (rows, 320, 640, 128, 0, True, 128), exact=True)


def batches() -> Iterator[Case]:
    """Yield rows of products for the rule of batch invariance: one scale a row, and group scales."""
    for add in (0, 1):
        yield Case("matmul_ternary", f"batch-add{add}", _build, (BATCH_ROWS, 70, 640, add))
    for block in (64, 128, 256):
        for group_size in (0, 32, 128):
            yield Case(
                "matmul_ternary_block",
                f"batch-b{block}-a{group_size}",
                _block,
                (BATCH_ROWS, 70, 640, block, 0, False, group_size),
            )
