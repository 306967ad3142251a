"""Faulty attention: the case meant for each fault rejects it, a plain case accepts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Arrays = dict[str, Any]
Meaning = Callable[[Arrays, Any, Any], None]


def heads_shared_in_turn(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    """Use key/value head h % n_kv_heads in place of h / group."""
    n_heads, n_kv, dim, rows = (int(p[n]) for n in ("n_heads", "n_kv_heads", "head_dim", "rows"))
    if n_kv != 5:
        right(a, p, c)
        return
    group = n_heads // n_kv
    order = np.arange(n_heads).reshape(group, n_kv).T.reshape(-1)
    q = a["q"].reshape(rows, n_heads, dim)[:, order]
    out = np.empty_like(q)
    right(dict(a, q=q.reshape(-1).copy(), out=out.reshape(-1)), p, c)
    a["out"].reshape(rows, n_heads, dim)[:, order] = out


def mask_lets_the_future_in(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    step = a["step"].copy().reshape(-1, 4)
    if len(step) == 33:
        step[:, 1] = 32
    right(dict(a, step=step.reshape(-1)), p, c)


def newest_position_left_out(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    step = a["step"].copy().reshape(-1, 4)
    step[:, 1] -= step[:, 1] > 0
    right(dict(a, step=step.reshape(-1)), p, c)


def tiles_read_stale_rows(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    step = a["step"].copy().reshape(-1, 4)
    step[:, 1] += step[:, 1] == 63
    right(dict(a, step=step.reshape(-1), tables=np.maximum(a["tables"], 0)), p, c)


def block_table_of_the_first_sequence(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    step = a["step"].copy().reshape(-1, 4)
    step[:, 3] = 0
    right(dict(a, step=step.reshape(-1), tables=np.maximum(a["tables"], 0)), p, c)


def cache_taken_as_contiguous(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    tables = a["tables"].copy()
    tables[:] = np.arange(tables.size) % max(1, tables.max() + 1)
    right(dict(a, tables=tables) if p["rows"] > 2 else a, p, c)


def exponentials_without_the_maximum(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, c)
    if np.abs(a["q"]).max() > 80:
        a["out"][:] = np.nan


def int8_rows_share_a_scale(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    def flat(cache: Any) -> Any:
        rows = cache.copy().reshape(-1, int(p["row_bytes"]))
        if c["KV"] == 2:
            rows[:, :4] = np.frombuffer(np.float32(1 / 40).tobytes(), np.uint8)
        return rows.reshape(-1)

    right(dict(a, k_cache=flat(a["k_cache"]), v_cache=flat(a["v_cache"])), p, c)


def unused_rows_left_as_they_were(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    unused = a["step"].reshape(-1, 4)[:, 1] < 0
    before = a["out"].copy()
    right(a, p, c)
    a["out"].reshape(len(unused), -1)[unused] = before.reshape(len(unused), -1)[unused]


def nan_query_swallowed(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(dict(a, q=np.nan_to_num(a["q"])), p, c)


def ends_after_512_positions(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    step = a["step"].copy().reshape(-1, 4)
    step[:, 1] = np.minimum(step[:, 1], 511)
    right(dict(a, step=step.reshape(-1)), p, c)


def head_rounded_down_to_a_vector(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    dim = int(p["head_dim"])
    q = a["q"].copy().reshape(-1, dim)
    q[:, dim // 4 * 4 :] = 0
    right(dict(a, q=q.reshape(-1)), p, c)


FAULTS = [
    # (fault, kernel, rejected by, accepted by)
    (heads_shared_in_turn, "attention", "f16-gqa", "position-63"),
    (mask_lets_the_future_in, "attention", "f16-prompt", "f16-one-token"),
    (newest_position_left_out, "attention", "position-64", "f16-one-token"),
    (tiles_read_stale_rows, "attention", "position-63", "position-64"),
    (block_table_of_the_first_sequence, "attention", "decode-batch", "position-62"),
    (cache_taken_as_contiguous, "attention", "mixed", "f16-one-token"),
    (exponentials_without_the_maximum, "attention", "large-scores", "f32-gqa"),
    (int8_rows_share_a_scale, "attention", "int8-gqa", "f16-gqa"),
    (unused_rows_left_as_they_were, "attention", "unused-rows", "decode-batch"),
    (nan_query_swallowed, "attention", "nan-query", "decode-batch"),
    (ends_after_512_positions, "attention", "position-600", "position-63"),
    (head_rounded_down_to_a_vector, "attention", "f16-odd-head", "f16-gqa"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_kernel_is_rejected(fault: tuple[Any, ...], reject: Callable[..., None]) -> None:
    reject(*fault)
