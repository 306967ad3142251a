"""Faulty conversions of codes: the case meant for each fault rejects it, a plain case accepts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Arrays = dict[str, Any]
Meaning = Callable[[Arrays, Any, Any], None]


def scale_of_zero_ignored(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    blocks = a["blocks"].reshape(-1, 2 + c["BLOCK"] // 4).copy()
    blocks[:, 0] |= 1
    right(dict(a, blocks=blocks.reshape(-1)), p, c)


def sign_of_a_zero_read_as_a_scale(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    blocks = a["blocks"].reshape(-1, 2 + c["BLOCK"] // 4).copy()
    blocks[blocks[:, 1] == 128, 0] |= 1
    right(dict(a, blocks=blocks.reshape(-1)), p, c)


def nothing_is_odd(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(dict(a, odd=a["odd"].copy()), p, c)


def first_group_only(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    before = a["w"].copy()
    right(a, p, c)
    rows, row_bytes, first = int(p["rows"]), int(p["width"]) // 4, int(p["first"])
    for row in range(first, first + rows):
        rest = slice(row * row_bytes + 32, (row + 1) * row_bytes)
        a["w"][rest] = before[rest]


def written_at_row_0(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, {**p, "first": 0}, c)


def padding_of_code_0(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, c)
    row_bytes = int(p["width"]) // 4
    start, stop = (row_bytes * row for row in (int(p["first"]), int(p["first"]) + int(p["rows"])))
    if p["columns"] % 128:
        a["w"][start:stop].reshape(int(p["rows"]), -1)[:, -32:] &= np.uint8(0xF0)


FAULTS = [
    # (fault, kernel, rejected by, accepted by)
    (scale_of_zero_ignored, "repack_q2_0", "b64-t5-k2560", "b64-t1-k64"),
    (sign_of_a_zero_read_as_a_scale, "repack_q2_0", "b128-t5-k2560", "b128-t1-k128"),
    (nothing_is_odd, "repack_q2_0", "b64-three", "b64-first"),
    (nothing_is_odd, "repack_q2_0", "b128-zeros", "b128-first"),
    (first_group_only, "repack_q2_0", "b64-t3-k384", "b128-t1-k128"),
    (written_at_row_0, "repack_q2_0", "b128-first", "b128-t3-k384"),
    (padding_of_code_0, "repack_q2_0", "padding-t5-k2624", "b64-t5-k2560"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_kernel_is_rejected(fault: tuple[Any, ...], reject: Callable[..., None]) -> None:
    reject(*fault)
