"""Faulty fused kernels: the case meant for each fault rejects it, a plain case accepts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from bitnet_hal.reference.device import NumpyDevice
from bitnet_hal.testing.cases.case import Case
from bitnet_hal.testing.cases.registry import all_cases

Arrays = dict[str, Any]
Meaning = Callable[[Arrays, Any, Any], None]
FUSED = ("norm_matmul", "norm_matmul_glu", "matmul_ternary_glu", "rope_attention", "rope_attention_mixed")


def padding_counts_as_columns(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    """Take the mean of squares over the padded width."""
    right(dict(a, gamma=a["gamma"] * np.float32((p["width"] / p["columns"]) ** 0.5)), p, c)


def gamma_ignored(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(dict(a, gamma=np.ones_like(a["gamma"])), p, c)


def nan_swallowed(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(dict(a, x=np.nan_to_num(a["x"], posinf=1, neginf=1)), p, c)


def y_first_ignored(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, {**p, "y_first": 0}, c)


def up_takes_the_scales_of_gate(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    outs = int(p["outs"])
    equal = p["rows"] == 3  # a plain case
    right(a if equal else dict(a, wscale=np.tile(a["wscale"][:outs], 2)), p, c)


def gate_nan_becomes_zero(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, c)
    np.nan_to_num(a["m"], copy=False)


def newest_position_left_out(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    """Let a row attend only to what was cached before it; the first token then has nothing to attend to."""
    step = a["step"].reshape(-1, 4)
    caches = {name: a[name].copy() for name in ("k_cache", "v_cache")}
    right(a, p, c)
    if (step[:, 1] > 0).all():
        right({**a, **caches, "step": (step - [0, 1, 1, 0]).astype(np.int32).reshape(-1)}, p, c)


def key_not_stored(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    before = a["k_cache"].copy()
    right(a, p, c)
    if p["rows"] > 1:
        a["k_cache"][:] = before


def pairs_of_the_other_kind(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    right(a, p, {**c, "INTERLEAVED": 0})


def row_without_slot_attends(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    step = a["step"].copy().reshape(-1, 4)
    step[:, 2] = np.where((step[:, 2] < 0) & (step[:, 1] >= 0), 0, step[:, 2])
    right(dict(a, step=step.reshape(-1)), p, c)


def rows_of_a_sequence_read_the_cache_alone(right: Meaning, a: Arrays, p: Any, c: Any) -> None:
    """Let the first row be the only one to see its key and value before the launch has ended."""
    step = a["step"].reshape(-1, 4)
    caches = {name: a[name].copy() for name in ("k_cache", "v_cache")}
    right(a, p, c)
    size = int(p["n_heads"]) * int(p["head_dim"])
    width = size + 2 * int(p["n_kv_heads"]) * int(p["head_dim"])
    for row in range(len(step)):
        alone = {"step": a["step"][4 * row :], "qkv": a["qkv"].reshape(-1)[width * row :], "out": np.empty(size, "f4")}
        right({**a, **{name: cache.copy() for name, cache in caches.items()}, **alone}, {**p, "rows": 1}, c)
        a["out"].reshape(-1)[size * row : size * (row + 1)] = alone["out"]


FAULTS = [
    # (fault, kernel, rejected by, accepted by)
    (padding_counts_as_columns, "norm_matmul", "t3-n64-k130", "t2-n17-k128"),
    (gamma_ignored, "norm_matmul", "t1-n16-k127", "plain-add-t1-n16-k127"),
    (nan_swallowed, "norm_matmul", "spoiled-rows", "t1-n250-k640"),
    (y_first_ignored, "norm_matmul", "add-part-of-y", "t1-n33-k1"),
    (up_takes_the_scales_of_gate, "norm_matmul_glu", "relu2-t1-n16-k127", "relu2-t3-n64-k130"),
    (gate_nan_becomes_zero, "norm_matmul_glu", "nan", "silu-t2-n31-k640"),
    (up_takes_the_scales_of_gate, "matmul_ternary_glu", "relu2-t8-n70-k640", "relu2-t3-n64-k130"),
    (gate_nan_becomes_zero, "matmul_ternary_glu", "nan", "silu-t16-n66-k384"),
    (newest_position_left_out, "rope_attention", "position-127", "f32-one-token"),
    (key_not_stored, "rope_attention", "f16-gqa", "f16-one-token"),
    (pairs_of_the_other_kind, "rope_attention", "interleaved", "int8-long"),
    (row_without_slot_attends, "rope_attention", "unused-rows", "batch"),
    (rows_of_a_sequence_read_the_cache_alone, "rope_attention_mixed", "f16-prompt", "f16-one-token"),
    (key_not_stored, "rope_attention_mixed", "mixed-d64", "f16-one-token"),
    (row_without_slot_attends, "rope_attention_mixed", "unused-rows", "normed"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_kernel_is_rejected(fault: tuple[Any, ...], reject: Callable[..., None]) -> None:
    reject(*fault)


@pytest.mark.parametrize("case", [c for c in all_cases() if c.kernel in FUSED], ids=lambda case: case.id)
def test_the_meanings_pass(case: Case, judge: Callable[..., str]) -> None:
    """The numpy device runs these kernels too, although it does not offer them: they save it no time."""
    assert judge(NumpyDevice, "test_kernel", case=case) == ""
