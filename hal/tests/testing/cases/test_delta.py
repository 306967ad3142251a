"""Faulty kernels of delta nets and rotations: the case meant for each fault rejects it, a plain case accepts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from bitnet_hal.kernels.catalogue import SILU

Arrays = dict[str, Any]
Meaning = Callable[[Arrays, Any, Any], None]


def not_normalized(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, c)
    a["y"] *= np.float32(int(p["block"]) ** 0.5 / 2**0.5)


def signs_on_the_wrong_side(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, {"INVERSE": 1})


def natural_order_of_the_whole_row(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, {**p, "block": int(p["width"]) & -int(p["width"])}, c)


def gate_nan_becomes_zero(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(dict(a, gate_up=np.nan_to_num(a["gate_up"])), p, c)


def squared_for_silu(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, {**c, "ACT": 0})


def old_state_at_position_0(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    step = a["step"].reshape(-1, 4).copy()
    step[step[:, 1] == 0, 1] = 1
    right(dict(a, step=step.reshape(-1)), p, c)


def state_forgotten(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(dict(a, state=a["state"].copy()), p, c)


def unused_rows_count(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    step = a["step"].reshape(-1, 4).copy()
    step[step[:, 1] < 0, 1] = 3
    right(dict(a, step=step.reshape(-1)), p, c)


def taps_in_reverse(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    weight = a["weight"].reshape(-1, int(p["taps"]))[:, ::-1]
    right(dict(a, weight=np.ascontiguousarray(weight).reshape(-1)), p, c)


def one_state_for_all(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    step = a["step"].reshape(-1, 4).copy()
    step[:, 3] = 2
    right(dict(a, step=step.reshape(-1)), p, c)


def heads_in_groups(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    """Let value head h read key head h / (heads / groups), the order of checkpoints."""
    rows, heads, groups, dim = (int(p[name]) for name in ("rows", "n_heads", "n_key_heads", "key_dim"))
    qkv = a["qkv"].reshape(rows, -1)
    width = 2 * groups * dim
    keys = np.repeat(qkv[:, :width].reshape(rows, 2, groups, dim), heads // groups, axis=2).reshape(rows, -1)
    wide = np.concatenate([keys, qkv[:, width:]], axis=1)
    right(dict(a, qkv=wide.reshape(-1)), {**p, "n_key_heads": heads}, c)


def keys_of_any_length(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, {**p, "eps": 1.0}, c)


def decay_of_one(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(dict(a, rate=a["rate"] * 0), p, c)


def order_of_heads_kept(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, {**p, "groups": 1}, c)


def gate_of_the_other_kind(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, {**c, "ACT": SILU})


def never_normed(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, {**c, "NORM": 0})


def norm_of_plain_rows_too(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, {**c, "NORM": 1})


def never_kept(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, {**c, "KEEP": 0})


FAULTS = [
    # (fault, kernel, rejected by, accepted by)
    (not_normalized, "hadamard_rotate", "forward-t2-k24-b8", "forward-t1-k2-b2"),
    (signs_on_the_wrong_side, "hadamard_rotate", "forward-t3-k384-b128", "inverse-t3-k384-b128"),
    (natural_order_of_the_whole_row, "hadamard_rotate", "forward-exact", "forward-t2-k24-b8"),
    (gate_nan_becomes_zero, "glu", "silu-nan-inf", "silu-t2-k127"),
    (squared_for_silu, "glu", "silu-t7-k256", "relu2-t7-k256"),
    (old_state_at_position_0, "causal_conv1d", "begins", "goes-on"),
    (state_forgotten, "causal_conv1d", "one", "nobody"),
    (unused_rows_count, "causal_conv1d", "mixed", "begins"),
    (taps_in_reverse, "causal_conv1d", "goes-on", "nobody"),
    (one_state_for_all, "causal_conv1d", "one", "goes-on"),
    (old_state_at_position_0, "gated_delta_rule", "begins", "one"),
    (unused_rows_count, "gated_delta_rule", "mixed", "goes-on"),
    (one_state_for_all, "gated_delta_rule", "mixed", "goes-on"),
    (heads_in_groups, "gated_delta_rule", "goes-on", "h3-g3-k5-v7"),
    (keys_of_any_length, "gated_delta_rule", "one", "nobody"),
    (decay_of_one, "gated_delta_rule", "one", "first"),
    (order_of_heads_kept, "gated_rms_norm", "t5-h6-d7-groups2", "normed-silu"),
    (gate_of_the_other_kind, "gated_rms_norm", "sigmoid", "silu"),
    (never_normed, "gated_rms_norm", "normed-silu", "silu"),
    (never_normed, "norm_rotate_quantize", "a32-norm1-keep0-t1-k128-b128", "a32-norm0-keep0-t1-k128-b128"),
    (never_kept, "norm_rotate_quantize", "a128-norm1-keep1-t1-k128-b128", "a128-norm1-keep0-t1-k128-b128"),
    (norm_of_plain_rows_too, "norm_rotate_quantize", "a32-norm0-keep0-t3-k768-b256", "a32-norm1-keep0-t3-k768-b256"),
    (squared_for_silu, "glu_rotate_quantize", "a32-silu-t2-k384-b128", "a32-relu2-t2-k384-b128"),
    (order_of_heads_kept, "gated_rotate_quantize", "a32-normed-silu-t3-h6-d64-groups2", "a32-normed-silu-nan"),
    (gate_of_the_other_kind, "gated_rotate_quantize", "a32-sigmoid-nan", "a32-silu-nan"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_kernel_is_rejected(fault: tuple[Any, ...], reject: Callable[..., None]) -> None:
    reject(*fault)
