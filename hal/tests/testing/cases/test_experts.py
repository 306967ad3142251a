"""Faulty kernels of a mixture of experts and of windows: the case meant for each fault rejects it, a plain case accepts
it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Arrays = dict[str, Any]
Meaning = Callable[[Arrays, Any, Any], None]


def softmax_over_all(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    """Leave the weights of the chosen experts as they are among all experts."""
    right(a, p, c)
    logits = a["logits"].reshape(int(p["rows"]), -1)
    share = np.exp(logits - logits.max(axis=1, keepdims=True))
    chosen = np.take_along_axis(share, a["ids"].reshape(len(share), -1), axis=1)
    a["weights"][:] = (chosen / share.sum(axis=1, keepdims=True)).reshape(-1)


def later_expert_wins_ties(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    rows, experts = int(p["rows"]), int(p["experts"])
    backwards = a["logits"].reshape(rows, experts)[:, ::-1].copy()
    right(dict(a, logits=backwards.reshape(-1)), p, c)
    a["ids"][:] = experts - 1 - a["ids"]


def nan_never_chosen(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(dict(a, logits=np.nan_to_num(a["logits"], nan=-1e9)), p, c)


def experts_in_order_of_their_ids(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, c)
    shape = int(p["rows"]), int(p["used"])
    order = np.argsort(a["ids"].reshape(shape), axis=1)
    for name in ("ids", "weights"):
        a[name][:] = np.take_along_axis(a[name].reshape(shape), order, axis=1).reshape(-1)


def first_expert_for_all(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(dict(a, ids=np.repeat(a["ids"].reshape(-1, int(p["used"]))[:, :1], int(p["used"]), axis=1).reshape(-1)), p, c)


def input_of_the_first_pair(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    if p["inputs"] == 1:
        right(a, p, c)
        return
    rows, used = int(p["rows"]), int(p["used"])
    firsts = {
        name: np.repeat(a[name].reshape(rows, used, -1)[:, :1], used, axis=1).reshape(-1)
        for name in ("q", "scale", "qsum")
    }
    right({**a, **firsts}, p, c)


def stray_experts_use_the_first(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    ids = a["ids"]
    right(dict(a, ids=np.where((ids < 0) | (ids >= p["experts"]), 0, ids)), p, c)


def last_pair_of_an_expert_lost(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    """Compute at most 32 pairs of an expert."""
    ids = a["ids"].copy()
    for expert in np.unique(ids):
        ids[np.flatnonzero(ids == expert)[32:]] = -1
    right(dict(a, ids=ids), p, c)


def scales_of_the_first_expert(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    experts = int(p["experts"])
    scales = a["wscale"].reshape(experts, -1)
    right(dict(a, wscale=np.tile(scales[:1], (experts, 1)).reshape(-1)), p, c)


def gate_clamped_below_too(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    both = a["gate_up"].reshape(int(p["rows"]), 2, -1).copy()
    both[:, 0] = np.maximum(both[:, 0], -np.float32(p["limit"]) / 4)
    right(dict(a, gate_up=both.reshape(-1)), p, c)


def never_clamped(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, {**p, "limit": float("inf")}, c)


def nan_clamped(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(dict(a, gate_up=np.nan_to_num(a["gate_up"], nan=float(p["limit"]))), p, c)


def sum_replaces_x(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    a["x"][:] = 0
    right(a, p, c)


def weights_of_one(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(dict(a, weights=a["weights"] * 0 + np.float32(1 / p["used"])), p, c)


def one_position_more(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, {**p, "window": p["window"] + 1}, c)


def window_of_whole_blocks(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, {**p, "window": (int(p["window"]) + 63) // 64 * 64}, c)


def no_window_in_prompts(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, {**p, "window": 1 << 20} if p["rows"] > 8 else p, c)


FAULTS = [
    # (fault, kernel, rejected by, accepted by)
    (softmax_over_all, "route_experts", "t1-e256-u8", "t2-e1-u1"),
    (later_expert_wins_ties, "route_experts", "ties", "t3-e5-u2"),
    (nan_never_chosen, "route_experts", "nan", "t1-e256-u8"),
    (experts_in_order_of_their_ids, "route_experts", "t33-e128-u6", "t2-e1-u1"),
    (first_expert_for_all, "matmul_experts", "t2-n65-k384-e5-u2", "t40-n3-k128-e1-u1"),
    (input_of_the_first_pair, "matmul_experts", "each-t2-n65-k384-e5-u2", "t2-n65-k384-e5-u2"),
    (stray_experts_use_the_first, "matmul_experts", "stray", "part"),
    (last_pair_of_an_expert_lost, "matmul_experts", "one-t40", "one"),
    (scales_of_the_first_expert, "matmul_experts", "t1-n33-k256-e256-u8", "t40-n3-k128-e1-u1"),
    (gate_clamped_below_too, "clamp_glu_quantize", "a32-t3-k384", "no-limit"),
    (never_clamped, "clamp_glu_quantize", "a32-t3-k384", "no-limit"),
    (nan_clamped, "clamp_glu_quantize", "a32-nan", "a32-t3-k384"),
    (sum_replaces_x, "sum_experts", "t5-k33-u3", "even"),
    (weights_of_one, "sum_experts", "t1-k2048-u8", "even"),
    (one_position_more, "window_attention", "w63-position-600", "larger-than-the-text"),
    (window_of_whole_blocks, "window_attention", "w65-position-191", "w64-position-191"),
    (no_window_in_prompts, "window_attention", "w64-prompt", "w64-position-600"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_kernel_is_rejected(fault: tuple[Any, ...], reject: Callable[..., None]) -> None:
    reject(*fault)
