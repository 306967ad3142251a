"""Faulty token selection: the case meant for each fault rejects it, a plain case accepts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Arrays = dict[str, Any]
Meaning = Callable[[Arrays, Any, Any], None]


def last_of_equal_logits(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    """Choose the last of equal logits: the added mark makes it the largest."""
    rows, vocab = (int(p[n]) for n in ("rows", "vocab"))
    logits = a["logits"][: rows * vocab].reshape(rows, vocab)
    last = vocab - 1 - np.argmax(logits[:, ::-1], axis=1)
    marked = logits.copy()
    marked[np.arange(rows), last] = np.where(np.isnan(logits).any(axis=1), np.nan, np.inf)
    right(dict(a, logits=marked.reshape(-1)), p, c)


def nan_logits_ignored(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(dict(a, logits=np.where(np.isnan(a["logits"]), -np.inf, a["logits"])), p, c)


def history_runs_past_its_ring(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    before = a["history"].reshape(-1, int(p["ring"]) + 1)[:, 0].copy()
    right(a, p, c)
    for row in np.flatnonzero(before >= p["ring"])[:1]:
        a["history"][min(a["history"].size - 1, (row + 1) * (int(p["ring"]) + 1))] = 5


def history_count_stops_at_the_ring(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, c)
    counts = a["history"].reshape(-1, int(p["ring"]) + 1)
    counts[:, 0] = np.minimum(counts[:, 0], int(p["ring"]))


def next_slot_in_the_same_block(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    before = a["step"].copy().reshape(-1, 4)
    right(a, p, c)
    step = a["step"].reshape(-1, 4)
    moved = step[:, 1] > before[:, 1]
    step[moved, 2] = before[moved, 2] + 1


def unused_rows_advance(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    step = a["step"].reshape(-1, 4)
    unused = step[:, 1] < 0
    right(a, p, c)
    step[unused, 0] = 3


def index_taken_as_identity(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(dict(a, index=np.arange(len(a["index"]))) if p["rows"] > 1 else a, p, c)


def equal_logits_in_falling_order(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, c)
    k = int(p["k"])
    for ids, values in zip(a["ids"].reshape(-1, k), a["values"].reshape(-1, k), strict=True):
        for value in np.unique(values):
            ids[values == value] = ids[values == value][::-1]


def top_k_drops_nan(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(dict(a, logits=np.nan_to_num(a["logits"], nan=-np.inf, posinf=np.inf, neginf=-np.inf)), p, c)


FAULTS = [
    # (fault, kernel, rejected by, accepted by)
    (last_of_equal_logits, "argmax_advance", "ties", "l7-v256"),
    (nan_logits_ignored, "argmax_advance", "nan", "ties"),
    (history_runs_past_its_ring, "argmax_advance", "full-history", "ties"),
    (history_count_stops_at_the_ring, "argmax_advance", "full-history", "ties"),
    (next_slot_in_the_same_block, "argmax_advance", "block-ends", "ties"),
    (unused_rows_advance, "argmax_advance", "unused-rows", "ties"),
    (index_taken_as_identity, "argmax_advance", "l2-v255", "l1-v1"),
    (equal_logits_in_falling_order, "top_k", "ties", "l7-v257-k8"),
    (top_k_drops_nan, "top_k", "nan-inf", "ties"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_kernel_is_rejected(fault: tuple[Any, ...], reject: Callable[..., None]) -> None:
    reject(*fault)
