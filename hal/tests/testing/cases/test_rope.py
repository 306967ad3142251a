"""Faulty rotary embedding and cache stores: the case meant for each fault rejects it, a plain case accepts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Arrays = dict[str, Any]
Meaning = Callable[[Arrays, Any, Any], None]


def interleaved_ignored(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, {**c, "INTERLEAVED": 0})


def unused_rows_stored_at_slot_0(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(dict(a, step=np.maximum(a["step"], 0)), p, c)


def int8_scale_of_absmax(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    before = {name: a[name].copy() for name in ("k_cache", "v_cache")}
    right(a, p, c)
    if c["KV"] == 2:
        for name, old in before.items():
            rows = a[name].reshape(-1, int(p["row_bytes"]))
            was = old.reshape(-1, int(p["row_bytes"]))
            for row in np.flatnonzero((rows != was).any(axis=1)):
                rows[row, :4] = (rows[row, :4].view(np.float32) * 127).view(np.uint8)


def cache_heads_mixed_up(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, c)
    heads, row_bytes = (int(p[n]) for n in ("n_kv_heads", "row_bytes"))
    cache = a["k_cache"].reshape(-1, heads, 64, row_bytes)
    cache[:] = cache[:, ::-1].copy()


def values_rounded_down(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    before = a["v_cache"].copy()
    right(a, p, c)
    if c["KV"] == 1:
        new = a["v_cache"] != before
        halves = a["v_cache"].view(np.uint16)
        halves[new.view(np.uint16) > 0] &= 0xFFFE


def values_rotated_too(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    n_heads, n_kv, dim, rows = (int(p[n]) for n in ("n_heads", "n_kv_heads", "head_dim", "rows"))
    right(a, p, c)
    if rows < 3:
        qkv = a["qkv"].reshape(rows, -1, dim).copy()
        qkv[:, n_heads : n_heads + n_kv] = qkv[:, n_heads + n_kv :]
        keys = a["k_cache"].copy()
        right(dict(a, qkv=qkv.reshape(-1), v_cache=np.zeros_like(a["v_cache"]), k_cache=keys), p, c)
        a["v_cache"][:] = keys


FAULTS = [
    # (fault, kernel, rejected by, accepted by)
    (interleaved_ignored, "rope_store_kv", "f16-interleaved", "f16-h4-kv4-d64"),
    (unused_rows_stored_at_slot_0, "rope_store_kv", "f16-unused-rows", "t512"),
    (int8_scale_of_absmax, "rope_store_kv", "int8-h4-kv4-d64", "f16-h4-kv4-d64"),
    (cache_heads_mixed_up, "rope_store_kv", "f32-h4-kv4-d64", "f32-h3-kv1-d6"),
    (values_rounded_down, "rope_store_kv", "f16-h20-kv5-d128", "f32-h3-kv1-d6"),
    (values_rotated_too, "rope_store_kv", "t1", "f32-unused-rows"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_kernel_is_rejected(fault: tuple[Any, ...], reject: Callable[..., None]) -> None:
    reject(*fault)
