"""Faulty embed_rows and matmul_dense: the case meant for each fault rejects it, a plain case accepts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Arrays = dict[str, Any]
Meaning = Callable[[Arrays, Any, Any], None]


def part_of_table_taken_for_the_whole(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    a["step"] = a["step"].copy()
    a["step"].reshape(-1, 4)[:, 0] %= int(p["count"])
    right(a, {**p, "first": 0}, c)


def last_row_left_out(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, {**p, "rows": p["rows"] - (p["rows"] > 8)}, c)


def bf16_read_as_f16(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, {"DTYPE": 1 if c["DTYPE"] == 2 else c["DTYPE"]})


def q6_k_high_bits_left_out(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    table = a["table"].copy()
    if c["DTYPE"] == 4:
        table.reshape(-1, 210)[:, 128:192] = 0
    right(dict(a, table=table), p, c)


def q8_0_codes_unsigned(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, c)
    if c["DTYPE"] == 3:
        np.abs(a["x"], out=a["x"])


def dense_writes_at_column_0(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, {**p, "y_first": 0}, c)


def dense_in_half_precision(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(dict(a, x=a["x"].astype(np.float16).astype(np.float32) if p["rows"] != 5 else a["x"]), p, c)


def dense_swallows_nan(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, c)
    np.nan_to_num(a["y"], copy=False)


def dense_drops_the_last_columns(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    rows, width = (int(p[n]) for n in ("rows", "width"))
    x = a["x"].copy()
    x[: rows * width].reshape(rows, width)[:, width // 32 * 32 :] = 0
    right(dict(a, x=x), p, c)


def dense_grid_ends_at_65535(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, {**p, "outs": min(p["outs"], 65535)}, c)


FAULTS = [
    # (fault, kernel, rejected by, accepted by)
    (part_of_table_taken_for_the_whole, "embed_rows", "part-of-table", "t33"),
    (last_row_left_out, "embed_rows", "t512", "t2"),
    (bf16_read_as_f16, "embed_rows", "bf16-h65", "f16-h128"),
    (q6_k_high_bits_left_out, "embed_rows", "q6_K-h256", "q8_0-h96"),
    (q8_0_codes_unsigned, "embed_rows", "q8_0-h32", "q6_K-h256"),
    (dense_writes_at_column_0, "matmul_dense", "part-of-y", "f16-t7-n65-k512"),
    (dense_in_half_precision, "matmul_dense", "f16-t1-n33-k2560", "spoiled-rows"),
    (dense_swallows_nan, "matmul_dense", "spoiled-rows", "prompt"),
    (dense_drops_the_last_columns, "matmul_dense", "f16-odd-k127", "f16-t2-n31-k256"),
    (dense_grid_ends_at_65535, "matmul_dense", "many-outs", "wide"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_kernel_is_rejected(fault: tuple[Any, ...], reject: Callable[..., None]) -> None:
    reject(*fault)
