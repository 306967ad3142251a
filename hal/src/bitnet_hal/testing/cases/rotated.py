"""Cases of norm_rotate_quantize, glu_rotate_quantize and gated_rotate_quantize."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bitnet_hal.kernels.catalogue import RELU2, SIGMOID, SILU
from bitnet_hal.testing.cases.case import BATCH_ROWS, Array, Case, CaseLaunch, Rng, blank
from bitnet_hal.testing.cases.data import normal


def _outputs(rng: Rng, rows: int, width: int) -> dict[str, Array]:
    return {
        "signs": rng.choice([-1.0, 1.0], width),
        "q": blank(rows * width, "i8"),
        "scale": blank(rows * width // 32, "f32"),
        "qsum": blank(rows * width // 32, "i32"),
    }


def _norm(rng: Rng, rows: int, width: int, block: int, norm: int, keep: int, ablock: int, kind: str = "") -> CaseLaunch:
    x = normal(rng, rows, width) * np.float32(5)
    if kind == "nan":
        x[0, 1], x[1, width - 1], x[2] = np.nan, np.inf, 0
    return CaseLaunch(
        {"rows": rows, "width": width, "block": block, "eps": 1e-6},
        {
            "x": x,
            "gamma": rng.uniform(0.5, 1.5, width).astype(np.float32),
            "y": blank(rows * width, "f32"),
            **_outputs(rng, rows, width),
        },
        {"NORM": norm, "KEEP": keep, "ABLOCK": ablock},
    )


def _glu(rng: Rng, rows: int, width: int, block: int, act: int, ablock: int, kind: str = "") -> CaseLaunch:
    gate_up = normal(rng, rows, 2 * width) * np.float32(2)
    if kind == "nan":
        gate_up[0, 0], gate_up[1, 2 * width - 1] = np.nan, np.inf
    return CaseLaunch(
        {"rows": rows, "width": width, "block": block},
        {"gate_up": gate_up, **_outputs(rng, rows, width)},
        {"ACT": act, "ABLOCK": ablock},
    )


def _gated(
    rng: Rng, rows: int, sizes: tuple[int, int, int], block: int, norm: int, act: int, ablock: int, kind: str = ""
) -> CaseLaunch:
    heads, dim, groups = sizes
    x, gate = normal(rng, rows, heads * dim), normal(rng, rows, heads * dim) * np.float32(3)
    if kind == "nan":
        x[0, 0], gate[1, 1] = np.nan, np.nan
    return CaseLaunch(
        {"rows": rows, "n_heads": heads, "head_dim": dim, "groups": groups, "block": block, "eps": 1e-6},
        {
            "x": x,
            "gate": gate,
            "gamma": rng.uniform(0.5, 1.5, dim).astype(np.float32),
            **_outputs(rng, rows, heads * dim),
        },
        {"NORM": norm, "ACT": act, "ABLOCK": ablock},
    )


def cases() -> Iterator[Case]:
    """Yield sizes of real models and small ones, each constant, and rows whose NaN or Inf the rotation spreads."""
    for ablock in (32, 128):
        for norm, keep in ((0, 0), (1, 1), (1, 0), (0, 1)):
            for rows, width, block in ((1, 128, 128), (3, 768, 256), (2, 5120, 1024)):
                label = f"a{ablock}-norm{norm}-keep{keep}-t{rows}-k{width}-b{block}"
                yield Case("norm_rotate_quantize", label, _norm, (rows, width, block, norm, keep, ablock))
            label = f"a{ablock}-norm{norm}-keep{keep}-nan-inf"
            yield Case("norm_rotate_quantize", label, _norm, (3, 512, 256, norm, keep, ablock, "nan"))
        for act, name in ((RELU2, "relu2"), (SILU, "silu")):
            for rows, width, block in ((2, 384, 128), (1, 17408, 1024), (70, 512, 512)):
                label = f"a{ablock}-{name}-t{rows}-k{width}-b{block}"
                yield Case("glu_rotate_quantize", label, _glu, (rows, width, block, act, ablock))
            yield Case("glu_rotate_quantize", f"a{ablock}-{name}-nan-inf", _glu, (3, 512, 256, act, ablock, "nan"))
        for norm, act, name in (
            (0, SIGMOID, "sigmoid"),
            (1, SILU, "normed-silu"),
            (0, SILU, "silu"),
            (1, SIGMOID, "normed"),
        ):
            for rows, sizes, block in ((3, (6, 64, 2), 128), (1, (48, 128, 16), 1024), (70, (16, 32, 1), 256)):
                label = f"a{ablock}-{name}-t{rows}-h{sizes[0]}-d{sizes[1]}-groups{sizes[2]}"
                yield Case("gated_rotate_quantize", label, _gated, (rows, sizes, block, norm, act, ablock))
            spoiled = (3, (4, 128, 1), 256, norm, act, ablock, "nan")
            yield Case("gated_rotate_quantize", f"a{ablock}-{name}-nan", _gated, spoiled)
        yield Case("gated_rotate_quantize", f"a{ablock}-d256", _gated, (2, (24, 256, 1), 1024, 0, SIGMOID, ablock))


def batches() -> Iterator[Case]:
    """Yield rows for the rule of batch invariance."""
    yield Case("norm_rotate_quantize", "batch", _norm, (BATCH_ROWS, 512, 128, 1, 0, 32))
    yield Case("glu_rotate_quantize", "batch", _glu, (BATCH_ROWS, 512, 128, SILU, 32))
    yield Case("gated_rotate_quantize", "batch", _gated, (BATCH_ROWS, (8, 64, 1), 128, 1, SILU, 32))
