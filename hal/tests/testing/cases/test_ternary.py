"""Faulty ternary products: the case meant for each fault rejects it, a plain case accepts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Arrays = dict[str, Any]
Meaning = Callable[[Arrays, Any, Any], None]


def writes_at_column_0(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, {**p, "y_first": 0}, c)


def rows_of_y_taken_as_dense(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, {**p, "y_stride": p["outs"]}, c)


def add_ignored(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, {**c, "ADD": 0})


def sums_saturate_at_16_bits(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, c)
    if p["width"] == 8704 and p["outs"] == 4:
        np.clip(a["y"], -32768, 32767, out=a["y"])


def qsum_not_subtracted(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(dict(a, qsum=np.zeros_like(a["qsum"])) if p["outs"] != 4 else a, p, c)


def row_scale_of_the_tile_before(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(dict(a, scale=np.resize(a["scale"][: max(1, len(a["scale"]) // 2)], len(a["scale"]))), p, c)


def weight_scale_of_the_first_row_for_all(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(dict(a, wscale=np.full_like(a["wscale"], a["wscale"][0])) if p["outs"] > 64 else a, p, c)


def last_block_left_out(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    rows, width = (int(p[n]) for n in ("rows", "width"))
    q = a["q"].copy().reshape(rows, width)
    q[:, width // 256 * 256 :] = 0
    right(dict(a, q=q.reshape(-1)), p, c)


def one_sum_off_by_one(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    qsum = a["qsum"].copy()
    qsum[1:2] += 1
    right(dict(a, qsum=qsum), p, c)


def zero_rows_skip_their_scale(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(dict(a, scale=np.nan_to_num(a["scale"])), p, c)


def grid_ends_at_65535(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, {**p, "outs": min(p["outs"], 65535)}, c)


def scale_of_every_other_block(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    if c["BLOCK"] == 64:
        outs = int(p["outs"])
        wide = np.repeat(a["wscale"].reshape(outs, -1)[:, ::2], 2, axis=1)
        a = dict(a, wscale=wide[:, : a["wscale"].size // outs].reshape(-1).copy())
    right(a, p, c)


def last_partial_block_left_out(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    wscale = a["wscale"].copy().reshape(int(p["outs"]), -1)
    wscale[:, p["width"] // c["BLOCK"] :] = 0
    right(dict(a, wscale=wscale.reshape(-1)), p, c)


def block_add_ignored(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, {**c, "ADD": 0})


FAULTS = [
    # (fault, kernel, rejected by, accepted by)
    (writes_at_column_0, "matmul_ternary", "part-of-y", "t7-n33-k640"),
    (rows_of_y_taken_as_dense, "matmul_ternary", "part-of-y", "t1-n31-k256"),
    (add_ignored, "matmul_ternary", "add-t7-n33-k256", "t7-n33-k640"),
    (sums_saturate_at_16_bits, "matmul_ternary", "largest-sums", "t1-n1-k128"),
    (qsum_not_subtracted, "matmul_ternary", "exact-t1-n64-k2560", "largest-sums"),
    (row_scale_of_the_tile_before, "matmul_ternary", "t33-n127-k384", "t1-n1-k128"),
    (weight_scale_of_the_first_row_for_all, "matmul_ternary", "t1-n130-k8640", "t1-n31-k256"),
    (last_block_left_out, "matmul_ternary", "t7-n33-k640", "t1-n31-k256"),
    (one_sum_off_by_one, "matmul_ternary", "exact-t7-n33-k256", "t1-n1-k128"),
    (zero_rows_skip_their_scale, "matmul_ternary", "spoiled-rows", "t7-n33-k640"),
    (grid_ends_at_65535, "matmul_ternary", "many-outs", "t8-n65-k2560"),
    (scale_of_every_other_block, "matmul_ternary_block", "b64-exact", "b128-exact"),
    (last_partial_block_left_out, "matmul_ternary_block", "b256-t33-n7-k384", "b256-add"),
    (block_add_ignored, "matmul_ternary_block", "b128-add", "b128-exact"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_kernel_is_rejected(fault: tuple[Any, ...], reject: Callable[..., None]) -> None:
    reject(*fault)
