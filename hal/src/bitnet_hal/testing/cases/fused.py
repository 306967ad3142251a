"""Cases of norm_matmul, norm_matmul_glu, matmul_ternary_glu and rope_attention."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bitnet_hal.kernels.catalogue import KV_BLOCK, KV_TYPES, RELU2, SILU
from bitnet_hal.rounding import ceil_div
from bitnet_hal.testing.cases.attention import STALE, AttentionBatch, batch_rows, cached, prompt
from bitnet_hal.testing.cases.case import BATCH_ROWS, Array, Case, CaseLaunch, Rng, blank
from bitnet_hal.testing.cases.data import activations, group_activations, normal, padded, ternary
from bitnet_hal.testing.cases.rope import head_gammas

SHAPES = (
    (1, 33, 1),
    (1, 16, 127),
    (2, 17, 128),
    (3, 64, 130),
    (1, 250, 640),
    (1, 48, 2560),
    (2, 15, 6912),
    (1, 9, 8640),
)
"""(T, N, K)"""
SCALES = ((128, 32), (64, 32), (256, 32), (128, 0), (128, 128))
"""(BLOCK, ABLOCK)"""


def _inputs(rng: Rng, rows: int, columns: int, norm: int, act_group: int = 0) -> tuple[Array, Array]:
    """Return (x, gamma) whose normed columns are whole quantization steps.

    Every device then gets the same codes in any order of its sums; a single different code would change all of y.
    """
    codes = rng.integers(-127, 128, (rows, columns)).astype(np.float32)
    codes[:, rng.integers(columns)] = 127
    if act_group:
        codes[:, ::act_group] = 127
    gamma = rng.uniform(0.2, 2, columns).astype(np.float32)
    x = codes * rng.uniform(0.01, 0.1, (rows, 1)).astype(np.float32)
    return (x / gamma if norm else x), gamma


def _weight_scales(rng: Rng, outs: int, width: int, block: int) -> Array:
    return rng.uniform(0.1, 2, outs * (ceil_div(width, block) if block else 1))


def _norm_matmul(
    rng: Rng, rows: int, outs: int, columns: int, norm: int = 1, add: int = 0, block: int = 0, act_group: int = 0
) -> CaseLaunch:
    x, gamma = _inputs(rng, rows, columns, norm, act_group)
    width = padded(columns)
    return CaseLaunch(
        {
            "rows": rows,
            "columns": columns,
            "outs": outs,
            "width": width,
            "y_stride": outs,
            "y_first": 0,
            "eps": 1e-5,
        },
        {
            "x": x,
            "gamma": gamma,
            "w": ternary(rng, outs, width, columns),
            "wscale": _weight_scales(rng, outs, width, block),
            "y": normal(rng, rows, outs),
        },
        {"NORM": norm, "ADD": add, "BLOCK": block, "ABLOCK": act_group},
    )


def _part_of_y(rng: Rng, add: int) -> CaseLaunch:
    """Write columns 13..52 of y[2, 100]."""
    launch = _norm_matmul(rng, 2, 40, 256, 1, add)
    launch.params.update(y_stride=100, y_first=13)
    launch.arrays["y"] = normal(rng, 2, 100)
    return launch


def _spoiled(rng: Rng) -> CaseLaunch:
    """Set rows to NaN, Inf, a sum of squares that overflows, zeros, and values around the absmax floor; row 5 stays
    finite."""
    launch = _norm_matmul(rng, 7, 33, 300)
    x = launch.arrays["x"]
    x[0, -1] = np.nan
    x[1, 0] = -np.inf
    x[2, 7] = 3e25
    x[3] = 0
    x[4] = x[4] * np.float32(1e-12)
    x[6] = x[6] * np.float32(1e12)
    return launch


def _glu(
    rng: Rng,
    rows: int,
    outs: int,
    columns: int,
    act: int = RELU2,
    norm: int = 1,
    block: int = 0,
    act_group: int = 0,
) -> CaseLaunch:
    x, gamma = _inputs(rng, rows, columns, norm, act_group)
    width = padded(columns)
    return CaseLaunch(
        {"rows": rows, "columns": columns, "outs": outs, "width": width, "eps": 1e-5},
        {
            "x": x,
            "gamma": gamma,
            "w": ternary(rng, 2 * outs, width, columns),
            # gates of a few units, at which SiLU is neither 0 nor the identity
            "wscale": _weight_scales(rng, 2 * outs, width, block) / (columns**0.5 if norm else 1),
            "m": blank(rows * outs, "f32"),
        },
        {"ACT": act, "NORM": norm, "BLOCK": block, "ABLOCK": act_group},
    )


def _matmul_glu(
    rng: Rng, rows: int, outs: int, columns: int, act: int = RELU2, block: int = 0, act_group: int = 0
) -> CaseLaunch:
    width = padded(columns)
    shape = rows, width, columns
    quantized = group_activations(rng, *shape, act_group) if act_group else activations(rng, *shape)
    return CaseLaunch(
        {"rows": rows, "outs": outs, "width": width},
        {
            "w": ternary(rng, 2 * outs, width, columns),
            "wscale": _weight_scales(rng, 2 * outs, width, block),
            **dict(zip(("q", "scale", "qsum"), quantized, strict=True)),
            "m": blank(rows * outs, "f32"),
        },
        {"ACT": act, "BLOCK": block, "ABLOCK": act_group},
    )


def _nan_matmul_glu(rng: Rng) -> CaseLaunch:
    """Mark a row by scale = NaN, as in _nan_glu."""
    launch = _matmul_glu(rng, 9, 40, 256)
    launch.arrays["scale"][1] = np.nan
    launch.arrays["q"][1] = 0
    launch.arrays["qsum"][1] = 0
    return launch


def _nan_glu(rng: Rng) -> CaseLaunch:
    """Put a NaN into a row: all its columns must become NaN, although max(g, 0) would hide it."""
    launch = _glu(rng, 3, 40, 200)
    launch.arrays["x"][1, 100] = np.nan
    return launch


def _rope_attention(
    rng: Rng, batch: AttentionBatch, interleaved: int = 0, without_slot: tuple[int, ...] = (), norm: int = 0
) -> CaseLaunch:
    """Choose keys and (cos, sin) so that no rotated key rounds and all devices cache the same, unless heads are
    normed.

    The rows' own slots are stale before the launch.
    """
    rows = len(batch.rows)
    n_heads, n_kv = batch.heads
    head_dim = batch.head_dim
    params, arrays = cached(rng, batch)
    step = arrays["step"]
    for name in ("k_cache", "v_cache"):
        used = step[step[:, 2] >= 0, 2]
        arrays[name][used // KV_BLOCK, :, used % KV_BLOCK] = STALE
    step[list(without_slot), 2] = -1
    qkv = normal(rng, rows, n_heads + 2 * n_kv, head_dim)
    qkv[:, :n_heads] *= np.float32(batch.q_scale)
    qkv[:, n_heads : n_heads + n_kv] = rng.integers(-48, 49, (rows, n_kv, head_dim)) / 16
    arrays["qkv"] = qkv
    arrays.update(head_gammas(rng, head_dim))
    arrays["rope"] = rng.integers(-8, 9, (max(batch.lengths()) + 1, head_dim // 2, 2)) / 8
    arrays["out"] = blank(rows * n_heads * head_dim, "f32")
    return CaseLaunch(params | {"eps": 1e-6}, arrays, {"KV": batch.kv, "INTERLEAVED": interleaved, "QKNORM": norm})


def _nan_qkv(rng: Rng) -> CaseLaunch:
    """Put NaN into a query, which must spoil that head, and into a new key, which must spoil the heads that share
    it."""
    launch = _rope_attention(rng, AttentionBatch([(0, 10), (1, 70), (2, 12), (3, 200)], (4, 2)))
    launch.arrays["qkv"][0, 2, 5] = launch.arrays["qkv"][1, 4, 3] = np.nan
    return launch


def cases() -> Iterator[Case]:
    """Yield odd shapes, parts of y, rows with NaN; every cache type, head size and length for attention."""
    name = "norm_matmul"
    for t, n, k in SHAPES:
        yield Case(name, f"t{t}-n{n}-k{k}", _norm_matmul, (t, n, k))
        yield Case(name, f"plain-add-t{t}-n{n}-k{k}", _norm_matmul, (t, n, k, 0, 1))
    yield Case(name, "many-outs", _norm_matmul, (1, 70001, 128))
    yield Case(name, "part-of-y", _part_of_y, (0,))
    yield Case(name, "add-part-of-y", _part_of_y, (1,))
    yield Case(name, "spoiled-rows", _spoiled)
    for block, act_group in SCALES:
        for t, n, k in ((1, 33, 640), (1, 48, 2560), (2, 17, 127), (8, 65, 320), (1, 9, 8640)):
            label = f"b{block}-a{act_group}-t{t}-n{n}-k{k}"
            yield Case(name, label, _norm_matmul, (t, n, k, 1, 0, block, act_group))
        yield Case(name, f"b{block}-a{act_group}-plain-add", _norm_matmul, (3, 40, 256, 0, 1, block, act_group))
    for t in (4, 5, 8):
        yield Case(name, f"rows-{t}", _norm_matmul, (t, 130, 640))
    name = "norm_matmul_glu"
    for block, act_group in SCALES:
        for t, n, k in ((1, 33, 640), (8, 65, 320), (1, 16, 2560)):
            yield Case(name, f"b{block}-a{act_group}-t{t}-n{n}-k{k}", _glu, (t, n, k, SILU, 1, block, act_group))
    yield Case(name, "rows-8", _glu, (8, 70, 640))
    for t, n, k in SHAPES:
        yield Case(name, f"relu2-t{t}-n{n}-k{k}", _glu, (t, n, k))
    for t, n, k in SHAPES[:4]:
        yield Case(name, f"silu-plain-t{t}-n{n}-k{k}", _glu, (t, n, k, SILU, 0))
    yield Case(name, "silu-t2-n31-k640", _glu, (2, 31, 640, SILU))
    yield Case(name, "outs-above-4096", _glu, (1, 4111, 640))
    yield Case(name, "nan", _nan_glu)
    yield from _matmul_glu_cases()
    yield from _attention_cases()
    yield from _mixed_attention_cases()


def _matmul_glu_cases() -> Iterator[Case]:
    name = "matmul_ternary_glu"
    for t, n, k in (
        (8, 70, 640),
        (2, 16, 127),
        (3, 64, 130),
        (16, 66, 384),
        (20, 64, 2560),
        (33, 130, 640),
        (64, 30, 6912),
        (150, 160, 640),
    ):
        for act in (RELU2, SILU):
            yield Case(name, f"{('relu2', 'silu')[act]}-t{t}-n{n}-k{k}", _matmul_glu, (t, n, k, act))
    for block, act_group in SCALES:
        for t, n, k in ((8, 70, 640), (150, 160, 1536)):
            yield Case(name, f"b{block}-a{act_group}-t{t}-n{n}-k{k}", _matmul_glu, (t, n, k, SILU, block, act_group))
    for t, act in ((5, SILU), (40, RELU2)):  # as many outputs as fill a large GPU
        yield Case(name, f"b128-a32-t{t}-n8460-k256", _matmul_glu, (t, 8460, 256, act, 128, 32))
    yield Case(name, "b256-a128-relu2-t70-n64-k512", _matmul_glu, (70, 64, 512, RELU2, 256, 128))
    yield Case(name, "nan", _nan_matmul_glu)


def _attention_cases() -> Iterator[Case]:
    name = "rope_attention"
    batches: dict[str, AttentionBatch] = {}
    for kv, cache in enumerate(KV_TYPES):
        batches[f"{cache}-one-token"] = AttentionBatch([(0, 0)], kv=kv)
        batches[f"{cache}-gqa"] = AttentionBatch([(0, 64), (1, 3)], (20, 5), 128, kv)
        batches[f"{cache}-long"] = AttentionBatch([(0, 700)], (4, 2), 32, kv)
        batches[f"{cache}-odd-head"] = AttentionBatch([(0, 5), (1, 300)], (3, 1), 6, kv)
    for position in (62, 63, 64, 65, 127, 128, 129, 1030):
        batches[f"position-{position}"] = AttentionBatch([(0, position)], (8, 2))
    batches["batch"] = AttentionBatch([(s, 40 * s + 1) for s in range(8)], (4, 1), 80)
    for head_dim in (64, 128):  # more rows than keep a GPU busy, and more positions than one pass covers
        batches[f"many-rows-d{head_dim}"] = AttentionBatch([(s, 29 * s) for s in range(22)], (16, 4), head_dim)
    batches["many-parts"] = AttentionBatch([(0, 2600)], (4, 1), 128)  # with positions split among workgroups
    batches["parts-of-two-rows"] = AttentionBatch([(0, 700), (1, 290)], (8, 2))
    batches["part-without-positions"] = AttentionBatch([(0, 8192)], (4, 1))  # if 32 workgroups have multiples of 16
    batches["many-heads"] = AttentionBatch([(0, 150), (1, 20)], (24, 2), 128)
    batches["wide-heads"] = AttentionBatch([(0, 150), (1, 20)], (4, 4), 256)
    batches["parts-of-wide-heads"] = AttentionBatch([(0, 2600), (1, 0), (2, 257)], (12, 2), 256)
    batches["one-large-group"] = AttentionBatch([(0, 260)], (11, 1), 64)
    batches["large-scores"] = AttentionBatch([(0, 200), (1, 30)], (4, 4), 64, q_scale=30)
    for label, batch in batches.items():
        yield Case(name, label, _rope_attention, (batch,))
    for kv, cache in enumerate(KV_TYPES):
        normed = AttentionBatch([(0, 64), (1, 3), (2, 600)], (16, 8), 128, kv)
        yield Case(name, f"{cache}-normed", _rope_attention, (normed, 0, (), 1))
    yield Case(name, "normed-wide-heads", _rope_attention, (AttentionBatch([(0, 700), (1, 64)], (6, 1), 256), 0, (), 1))
    yield Case(name, "interleaved-wide-heads", _rope_attention, (AttentionBatch([(0, 90), (1, 3)], (4, 2), 256), 1))
    yield Case(name, "normed-odd-head", _rope_attention, (AttentionBatch([(0, 5)], (3, 1), 6), 0, (), 1))
    yield Case(name, "interleaved", _rope_attention, (AttentionBatch([(0, 90), (1, 3)], (8, 2), 32), 1))
    unused = AttentionBatch([(0, -1), (0, 40), (1, 33), (2, 290), (3, -1)], (4, 2), 32)
    yield Case(name, "unused-rows", _rope_attention, (unused, 0, (2,)))
    yield Case(name, "nan", _nan_qkv)


def _mixed_attention_cases() -> Iterator[Case]:
    """Yield rows of several sequences and of one, around the ends of cache blocks and of shares of the positions."""
    name = "rope_attention_mixed"
    batches: dict[str, AttentionBatch] = {}
    for kv, cache in enumerate(KV_TYPES):
        batches[f"{cache}-one-token"] = AttentionBatch([(0, 0)], kv=kv)
        batches[f"{cache}-prompt"] = AttentionBatch(prompt(8, 60), (8, 2), 128, kv)
        batches[f"{cache}-start"] = AttentionBatch(prompt(7), (4, 2), 64, kv)
    mixed = [(0, 130), *prompt(3, 254, 1), (2, 0), *prompt(2, 511, 3)]
    for head_dim in (64, 128, 256):
        batches[f"mixed-d{head_dim}"] = AttentionBatch(mixed, (6, 2), head_dim)
        batches[f"parts-d{head_dim}"] = AttentionBatch([*prompt(4, 1021), (1, 300)], (4, 1), head_dim)
    batches["part-without-positions"] = AttentionBatch(prompt(2, 8191), (4, 1))  # if 32 workgroups have multiples of 16
    batches["many-rows"] = AttentionBatch([*prompt(12, 60), (1, 5), *prompt(20, 0, 2)], (4, 2), 64)
    for label, batch in batches.items():
        yield Case(name, label, _rope_attention, (batch,))
    yield Case(name, "normed", _rope_attention, (AttentionBatch(mixed, (16, 8), 128), 0, (), 1))
    yield Case(name, "interleaved", _rope_attention, (AttentionBatch(mixed, (8, 2), 64), 1))
    unused = AttentionBatch([(0, -1), *prompt(2, 40), (1, -1), *prompt(2, 0, 2)], (4, 2), 64)
    yield Case(name, "unused-rows", _rope_attention, (unused, 0, (5,)))


def batches() -> Iterator[Case]:
    """Yield rows for the rule of batch invariance, of the fused kernels that serve any few rows."""
    for heads, head_dim in (((4, 4), 64), ((8, 2), 128), ((6, 1), 256)):
        batch = AttentionBatch(batch_rows(), heads, head_dim, KV_TYPES.index("f16"))
        yield Case("rope_attention_mixed", f"batch-d{head_dim}", _rope_attention, (batch, 0, (), 1))
    name = "matmul_ternary_glu"
    for block, group_size in SCALES:
        label = f"batch-b{block}-a{group_size}"
        yield Case(name, label, _matmul_glu, (BATCH_ROWS, 70, 640, SILU, block, group_size))
    yield Case(name, "batch", _matmul_glu, (BATCH_ROWS, 70, 640))
