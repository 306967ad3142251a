"""Cases of hadamard_rotate, glu, causal_conv1d, gated_delta_rule and gated_rms_norm."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bitnet_hal.kernels.catalogue import RELU2, SIGMOID, SILU
from bitnet_hal.testing.cases.case import BATCH_ROWS, Array, Case, CaseLaunch, Rng, blank
from bitnet_hal.testing.cases.data import normal, step_rows

SEQUENCES = 4
"""Sequences that have a state; every case leaves at least one unused."""

Runs = tuple[tuple[int, int, int], ...]
"""(sequence, position of its first row, rows); sequence -1 stands for unused rows."""

BEGINS: Runs = ((1, 0, 5),)
GOES_ON: Runs = ((2, 17, 5),)
ONE: Runs = ((3, 200, 1),)
MIXED: Runs = ((2, 9, 1), (0, 0, 3), (-1, 0, 2), (3, 4, 7), (-1, 0, 1))
PROMPTS: Runs = ((0, 0, 70), (2, 33, 40), (-1, 0, 2), (3, 5, 1))
"""Runs long enough to be processed in chunks, and not a multiple of a chunk."""
EVERY = {
    "begins": BEGINS,
    "goes-on": GOES_ON,
    "one": ONE,
    "mixed": MIXED,
    "first": ((1, 0, 1),),
    "nobody": ((-1, 0, 2),),
}


def _step(runs: Runs) -> Array:
    rows = [(sequence, first + n) for sequence, first, count in runs for n in range(count)]
    sequences, positions = (np.array(part, np.int32) for part in zip(*rows, strict=True))
    unused = sequences < 0
    positions[unused] = -1
    sequences[unused] = 1
    return step_rows(sequences * 0, positions, positions, sequences)


def _hadamard(rng: Rng, rows: int, width: int, block: int, inverse: int = 0, kind: str = "") -> CaseLaunch:
    x = rng.integers(-99, 100, (rows, width)).astype(np.float32) if kind == "whole" else normal(rng, rows, width)
    if kind == "nan":
        x[0, 1] = np.nan
        x[1, width - 1] = np.inf
    return CaseLaunch(
        {"rows": rows, "width": width, "block": block},
        {"x": x, "signs": rng.choice([-1.0, 1.0], width), "y": blank(rows * width, "f32")},
        {"INVERSE": inverse},
    )


def _glu(rng: Rng, rows: int, width: int, act: int, kind: str = "") -> CaseLaunch:
    gate_up = normal(rng, rows, 2 * width) * np.float32(3000 if kind == "large" else 2)
    if kind == "nan":
        gate_up[0, 0] = np.nan
        gate_up[1, 2 * width - 1] = np.inf
        gate_up[1, 0] = 1
    return CaseLaunch(
        {"rows": rows, "width": width}, {"gate_up": gate_up, "m": blank(rows * width, "f32")}, {"ACT": act}
    )


def _conv(rng: Rng, runs: Runs, channels: int, taps: int) -> CaseLaunch:
    step = _step(runs)
    return CaseLaunch(
        {"rows": len(step), "channels": channels, "taps": taps},
        {
            "x": normal(rng, len(step), channels),
            "step": step,
            "weight": normal(rng, channels, taps),
            "state": normal(rng, SEQUENCES, taps - 1, channels),
            "y": blank(len(step) * channels, "f32"),
        },
    )


def _rule(rng: Rng, runs: Runs, heads: int, groups: int, key_dim: int, value_dim: int) -> CaseLaunch:
    step = _step(runs)
    rows = len(step)
    gates = normal(rng, rows, 2 * heads) * np.float32(3)
    gates[0, 0] = 100  # softplus must not overflow
    return CaseLaunch(
        {
            "rows": rows,
            "n_heads": heads,
            "n_key_heads": groups,
            "key_dim": key_dim,
            "value_dim": value_dim,
            "eps": 1e-6,
        },
        {
            "qkv": normal(rng, rows, 2 * groups * key_dim + heads * value_dim),
            "gates": gates,
            "rate": -rng.uniform(0.05, 2, heads).astype(np.float32),
            "dt": normal(rng, heads),
            "step": step,
            "state": normal(rng, SEQUENCES, heads, key_dim, value_dim),
            "out": blank(rows * heads * value_dim, "f32"),
        },
    )


def _gated(
    rng: Rng, rows: int, heads: int, dim: int, groups: int, norm: int, act: int, spoiled: bool = False
) -> CaseLaunch:
    x = normal(rng, rows, heads * dim)
    gate = normal(rng, rows, heads * dim) * np.float32(3)
    if spoiled:
        x[0, 0] = np.nan
        gate[1, 1] = np.nan
    return CaseLaunch(
        {"rows": rows, "n_heads": heads, "head_dim": dim, "groups": groups, "eps": 1e-6},
        {
            "x": x,
            "gate": gate,
            "gamma": rng.uniform(0.5, 1.5, dim).astype(np.float32),
            "y": blank(rows * heads * dim, "f32"),
        },
        {"NORM": norm, "ACT": act},
    )


def cases() -> Iterator[Case]:
    """Yield sizes of real models and odd ones; rows that start or continue sequences, several sequences, unused
    rows."""
    yield from _hadamard_cases()
    for act, label in ((RELU2, "relu2"), (SILU, "silu")):
        for rows, width in ((1, 1), (2, 127), (7, 256), (1, 17408)):
            yield Case("glu", f"{label}-t{rows}-k{width}", _glu, (rows, width, act))
        yield Case("glu", f"{label}-large", _glu, (3, 100, act, "large"))
        yield Case("glu", f"{label}-nan-inf", _glu, (3, 100, act, "nan"))
    for label, runs in EVERY.items():
        yield Case("causal_conv1d", label, _conv, (runs, 70, 4))
        yield Case("gated_delta_rule", label, _rule, (runs, 6, 2, 64, 32))
    for taps, channels in ((2, 5), (3, 130), (4, 10240)):
        yield Case("causal_conv1d", f"taps{taps}-c{channels}", _conv, (MIXED, channels, taps))
    for heads, groups, key_dim, value_dim in ((1, 1, 1, 1), (3, 3, 5, 7), (4, 1, 128, 40), (48, 16, 128, 128)):
        label = f"h{heads}-g{groups}-k{key_dim}-v{value_dim}"
        yield Case("gated_delta_rule", label, _rule, (MIXED, heads, groups, key_dim, value_dim))
    yield Case("gated_delta_rule", "long", _rule, (((0, 0, 300),), 2, 1, 32, 16))
    yield Case("gated_delta_rule", "prompts", _rule, (PROMPTS, 2, 1, 32, 16))
    yield Case("gated_delta_rule", "prompt-k128-v128", _rule, (((1, 60, 70),), 1, 1, 128, 128))
    yield from _gated_cases()


def _hadamard_cases() -> Iterator[Case]:
    name = "hadamard_rotate"
    for inverse in (0, 1):
        way = ("forward", "inverse")[inverse]
        for rows, width, block in ((1, 2, 2), (3, 384, 128), (2, 24, 8), (33, 1024, 1024), (1, 17408, 1024)):
            yield Case(name, f"{way}-t{rows}-k{width}-b{block}", _hadamard, (rows, width, block, inverse))
        yield Case(name, f"{way}-nan-inf", _hadamard, (3, 256, 64, inverse, "nan"))
        yield Case(name, f"{way}-exact", _hadamard, (3, 512, 256, inverse, "whole"), exact=True)


def _gated_cases() -> Iterator[Case]:
    name = "gated_rms_norm"
    for norm, act, label in (
        (0, SIGMOID, "sigmoid"),
        (1, SILU, "normed-silu"),
        (0, SILU, "silu"),
        (1, SIGMOID, "normed"),
    ):
        yield Case(name, label, _gated, (7, 6, 64, 1, norm, act))
        yield Case(name, f"{label}-nan", _gated, (3, 2, 8, 1, norm, act, True))
    for rows, heads, dim, groups in ((1, 48, 128, 16), (5, 6, 7, 2), (3, 4, 1, 4)):
        yield Case(name, f"t{rows}-h{heads}-d{dim}-groups{groups}", _gated, (rows, heads, dim, groups, 1, SILU))


BATCH: Runs = ((2, 9, 1), (0, 0, 3), (3, 4, 7), (1, 40, BATCH_ROWS - 11))
"""Single rows, the start of a prompt and a continuation, each of a sequence of its own."""


def batches() -> Iterator[Case]:
    """Yield rows of several sequences, whose states pass from step to step, for the rule of batch invariance."""
    yield Case("hadamard_rotate", "batch", _hadamard, (BATCH_ROWS, 512, 128))
    yield Case("glu", "batch", _glu, (BATCH_ROWS, 200, SILU))
    yield Case("causal_conv1d", "batch", _conv, (BATCH, 130, 4))
    yield Case("gated_delta_rule", "batch", _rule, (BATCH, 4, 2, 64, 32))
    yield Case("gated_delta_rule", "batch-k128-v128", _rule, (BATCH, 2, 1, 128, 128))
    yield Case("gated_rms_norm", "batch", _gated, (BATCH_ROWS, 6, 64, 1, 1, SILU))
