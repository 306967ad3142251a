"""The numpy reference against formulas computed one element at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from bitnet_hal.kernels.catalogue import CATALOGUE, kv_row_bytes
from bitnet_hal.reference.meanings import MEANINGS
from bitnet_hal.reference.ternary import unpack_codes

Array = npt.NDArray[Any]


def run(name: str, arrays: dict[str, Array], params: Mapping[str, int | float], **constants: int) -> None:
    flat = {key: value.reshape(-1) for key, value in arrays.items()}
    spec = CATALOGUE[name]
    spec.check_constants(constants)
    with np.errstate(all="ignore"):
        MEANINGS[name](flat, spec.unpack(spec.pack(params)), constants)


def pack_row(codes: list[int]) -> bytes:
    """Return one row in I2_S layout, straight from the definition."""
    out = bytearray(len(codes) // 4)
    for k, code in enumerate(codes):
        block, e = divmod(k, 128)
        out[32 * block + e % 32] |= code << (6 - 2 * (e // 32))
    return bytes(out)


def test_unpack_codes_follows_the_definition() -> None:
    codes = np.random.default_rng(0).integers(0, 3, (3, 256))
    packed = np.array([list(pack_row(row)) for row in codes.tolist()], dtype=np.uint8)
    assert (unpack_codes(packed) == codes).all()


@pytest.mark.parametrize("add", [0, 1])
def test_matmul_ternary(add: int) -> None:
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 3, (5, 256))
    q = rng.integers(-128, 128, (3, 256)).astype(np.int8)
    scale = rng.random(3).astype(np.float32)
    wscale = rng.random(5).astype(np.float32)
    y = rng.random((3, 9)).astype(np.float32)
    before = y.copy()
    w = np.array([list(pack_row(row)) for row in codes.tolist()], dtype=np.uint8)
    arrays = {"w": w, "wscale": wscale, "q": q, "scale": scale, "qsum": q.sum(axis=1, dtype=np.int32), "y": y}
    run("matmul_ternary", arrays, {"rows": 3, "outs": 5, "width": 256, "y_stride": 9, "y_first": 2}, ADD=add)
    for t in range(3):
        for n in range(5):
            dot = sum((int(codes[n, k]) - 1) * int(q[t, k]) for k in range(256))
            value = np.float32(dot) * scale[t] * wscale[n]
            assert y[t, 2 + n] == (before[t, 2 + n] + value if add else value)
    assert (y[:, [0, 1, 7, 8]] == before[:, [0, 1, 7, 8]]).all()


@pytest.mark.parametrize("block", [64, 128, 256])
def test_matmul_ternary_block(block: int) -> None:
    rng = np.random.default_rng(2)
    codes = rng.integers(0, 3, (4, 384))
    q = rng.integers(-128, 128, (2, 384)).astype(np.int8)
    n_blocks = math.ceil(384 / block)
    scale = rng.random(2).astype(np.float32)
    wscale = rng.random((4, n_blocks)).astype(np.float32)
    y = np.zeros((2, 4), dtype=np.float32)
    w = np.array([list(pack_row(row)) for row in codes.tolist()], dtype=np.uint8)
    params = {"rows": 2, "outs": 4, "width": 384, "y_stride": 4, "y_first": 0}
    qsum = q.sum(axis=1, dtype=np.int32)
    arrays = {"w": w, "wscale": wscale, "q": q, "scale": scale, "qsum": qsum, "y": y}
    run("matmul_ternary_block", arrays, params, ADD=0, BLOCK=block, ABLOCK=0)
    terms = (codes[None] - 1) * q[:, None].astype(np.int64) * np.repeat(wscale, block, axis=1)[:, :384]
    np.testing.assert_allclose(y, terms.sum(axis=2) * scale[:, None], rtol=1e-5, atol=1e-4)


def test_quantize_rounds_half_to_even_and_marks_bad_rows() -> None:
    x = np.zeros((5, 128), dtype=np.float32)
    x[0, :4] = 127, 0.5, 1.5, -2.5
    x[1, 7] = np.nan
    x[2, 7] = np.inf
    x[3, :2] = 1e-7, -1e-7
    q = np.full((5, 128), 9, dtype=np.int8)
    scale = np.zeros(5, dtype=np.float32)
    qsum = np.zeros(5, dtype=np.int32)
    arrays = {"x": x, "gamma": np.ones(1, dtype=np.float32), "q": q, "scale": scale, "qsum": qsum}
    run("rms_norm_quantize", arrays, {"rows": 5, "width": 128, "stride": 128, "eps": 1e-5}, NORM=0, ABLOCK=0)
    assert q[0, :5].tolist() == [127, 0, 2, -2, 0]
    assert qsum[0] == 127
    assert np.isnan(scale[[1, 2]]).all()
    assert (q[[1, 2]] == 0).all()
    assert q[3, 0] == 1
    assert scale[3] == np.float32(1e-5) / np.float32(127)
    assert scale[4] > 0


def test_rms_norm_quantize_pads_with_zeros() -> None:
    x = np.random.default_rng(3).normal(size=(2, 100)).astype(np.float32)
    gamma = np.linspace(0.5, 2, 100, dtype=np.float32)
    q = np.full((2, 128), 9, dtype=np.int8)
    scale = np.zeros(2, dtype=np.float32)
    qsum = np.zeros(2, dtype=np.int32)
    arrays = {"x": x, "gamma": gamma, "q": q, "scale": scale, "qsum": qsum}
    run("rms_norm_quantize", arrays, {"rows": 2, "width": 100, "stride": 128, "eps": 1e-5}, NORM=1, ABLOCK=0)
    y = x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-5) * gamma
    np.testing.assert_allclose(q[:, :100] * scale[:, None], y, atol=scale.max() * 0.51)
    assert (q[:, 100:] == 0).all()


@pytest.mark.parametrize("kv", [0, 1, 2])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_attention_over_the_paged_cache(kv: int, interleaved: int) -> None:
    """70 tokens of one sequence, as 69 and 1, in scattered blocks, give plain attention."""
    rng = np.random.default_rng(4)
    heads = 4
    n_kv = 2
    dim = 8
    length = 70
    qkv = rng.normal(size=(length, heads + 2 * n_kv, dim)).astype(np.float32)
    angles = np.outer(np.arange(length), 1 / 10 ** np.linspace(0, 1, dim // 2))
    rope = np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)
    row_bytes = kv_row_bytes(kv, dim)
    k_cache, v_cache = (np.zeros(4 * 64 * n_kv * row_bytes, dtype=np.uint8) for _ in range(2))
    tables = np.array([[-1, -1], [3, 1]], dtype=np.int32)
    out = np.zeros((length, heads, dim), dtype=np.float32)
    common = {"n_heads": heads, "n_kv_heads": n_kv, "head_dim": dim, "row_bytes": row_bytes}
    for first, last in ((0, 69), (69, 70)):
        rows = last - first
        positions = np.arange(first, last)
        slots = tables[1, positions // 64] * 64 + positions % 64
        step = np.stack([positions * 0, positions, slots, positions * 0 + 1], axis=1).astype(np.int32)
        q = np.zeros((rows, heads, dim), dtype=np.float32)
        part = np.zeros((rows, heads, dim), dtype=np.float32)
        arrays: dict[str, Array] = {"qkv": qkv[first:last], "step": step, "rope": rope, "q": q}
        arrays |= {"k_cache": k_cache, "v_cache": v_cache, "tables": tables, "out": part}
        arrays["q_gamma"] = arrays["k_gamma"] = np.ones(dim, dtype=np.float32)
        run("rope_store_kv", arrays, {"rows": rows, **common, "eps": 0}, KV=kv, INTERLEAVED=interleaved, QKNORM=0)
        more = {"rows": rows, **common, "max_blocks": 2, "scale": dim**-0.5}
        run("attention", arrays, more, KV=kv)
        out[first:last] = part
    pairs = [(2 * j, 2 * j + 1) if interleaved else (j, j + dim // 2) for j in range(dim // 2)]
    rotated = qkv.astype(np.float64)
    for j, (a, b) in enumerate(pairs):
        cos = np.cos(angles[:, j, None])
        sin = np.sin(angles[:, j, None])
        rotated[..., a] = qkv[..., a] * cos - qkv[..., b] * sin
        rotated[..., b] = qkv[..., b] * cos + qkv[..., a] * sin
    for t in range(length):
        for h in range(heads):
            scores = rotated[: t + 1, heads + h // 2] @ rotated[t, h] * dim**-0.5
            weights = np.exp(scores - scores.max())
            expected = weights @ qkv[: t + 1, heads + n_kv + h // 2] / weights.sum()
            np.testing.assert_allclose(out[t, h], expected, atol=(1e-5, 5e-3, 5e-2)[kv])


def test_argmax_advance_and_top_k() -> None:
    logits = np.array([[1, 5, 5, 0], [np.nan, 1, 2, 3], [0, 0, 0, 9]], dtype=np.float32)
    step = np.array([[7, 63, 63, 0], [7, 3, 3, 0], [7, -1, -1, 0]], dtype=np.int32)
    history = np.zeros((3, 3), dtype=np.int32)
    arrays = {"logits": logits, "index": np.array([0, 1, 2], dtype=np.int32), "history": history}
    arrays |= {"tables": np.array([[0, 5]], dtype=np.int32), "step": step}
    arrays["mask"] = np.zeros(1, dtype=np.int32)
    run("argmax_advance", arrays, {"rows": 3, "vocab": 4, "stride": 4, "max_blocks": 2, "ring": 2}, MASK=0)
    assert step.tolist() == [[1, 64, 5 * 64, 0], [-1, -1, -1, 0], [7, -1, -1, 0]]
    assert history.tolist() == [[1, 1, 0], [1, -1, 0], [0, 0, 0]]
    ids = np.zeros((3, 2), dtype=np.int32)
    values = np.zeros((3, 2), dtype=np.float32)
    total = np.zeros((3, 2), dtype=np.float32)
    arrays = {"logits": logits, "mask": arrays["mask"], "ids": ids, "values": values, "total": total}
    run("top_k", arrays, {"rows": 3, "vocab": 4, "stride": 4, "k": 2}, MASK=0)
    assert ids.tolist() == [[1, 2], [0, 3], [3, 0]]
    assert total[0, 0] == 5
    np.testing.assert_allclose(total[0, 1], math.log(2 + math.exp(-4) + math.exp(-5)), rtol=1e-6)
    assert np.isnan(total[1]).all()
    arrays["mask"] = np.array([0b1001, 0b0110, 0], dtype=np.int32)
    run("top_k", arrays, {"rows": 3, "vocab": 4, "stride": 4, "k": 2}, MASK=1)
    assert ids.tolist() == [[0, 3], [2, 1], [-1, -1]]


@pytest.mark.parametrize("block", [64, 128])
def test_activations_with_a_scale_for_every_32_columns(block: int) -> None:
    """Quantized and multiplied with group scales, they are as close to the float product as 8 bits allow."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=(3, 200)).astype(np.float32) * np.logspace(-3, 3, 200, dtype=np.float32)
    codes = rng.integers(0, 3, (5, 256))
    wscale = rng.uniform(0.5, 2, (5, 256 // block)).astype(np.float32)
    q = np.full((3, 256), 9, dtype=np.int8)
    scale = np.zeros((3, 8), dtype=np.float32)
    qsum = np.zeros((3, 8), dtype=np.int32)
    y = np.zeros((3, 5), dtype=np.float32)
    arrays = {"x": x, "gamma": np.ones(1, dtype=np.float32), "q": q, "scale": scale, "qsum": qsum}
    run("rms_norm_quantize", arrays, {"rows": 3, "width": 200, "stride": 256, "eps": 0}, NORM=0, ABLOCK=32)
    absmax = np.abs(np.pad(x, ((0, 0), (0, 56)))).reshape(3, 8, 32).max(axis=2)
    np.testing.assert_allclose(scale, np.maximum(absmax, 1e-20) / 127, rtol=1e-6)
    assert (qsum == q.reshape(3, 8, 32).sum(axis=2)).all()
    w = np.array([list(pack_row(row)) for row in codes.tolist()], dtype=np.uint8)
    arrays = {"w": w, "wscale": wscale, "q": q, "scale": scale, "qsum": qsum, "y": y}
    params = {"rows": 3, "outs": 5, "width": 256, "y_stride": 5, "y_first": 0}
    run("matmul_ternary_block", arrays, params, ADD=0, BLOCK=block, ABLOCK=32)
    weights = (codes - 1) * np.repeat(wscale, block, axis=1)
    exact = (q * np.repeat(scale, 32, axis=1).astype(np.float64)) @ weights.T
    np.testing.assert_allclose(y, exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max())


def test_heads_are_normed_before_they_are_rotated() -> None:
    rng = np.random.default_rng(7)
    qkv = rng.normal(size=(1, 3, 4)).astype(np.float32)
    gamma = rng.uniform(0.5, 2, (2, 4)).astype(np.float32)
    rope = np.array([[[0.6, 0.8], [0.8, -0.6]]], dtype=np.float32)
    q = np.zeros((1, 1, 4), dtype=np.float32)
    caches = [np.zeros(64 * 16, dtype=np.uint8) for _ in range(2)]
    arrays = {"qkv": qkv, "step": np.zeros(4, dtype=np.int32), "rope": rope, "q": q}
    arrays |= {"q_gamma": gamma[0], "k_gamma": gamma[1], "k_cache": caches[0], "v_cache": caches[1]}
    params = {"rows": 1, "n_heads": 1, "n_kv_heads": 1, "head_dim": 4, "row_bytes": 16, "eps": 1e-6}
    run("rope_store_kv", arrays, params, KV=0, INTERLEAVED=0, QKNORM=1)
    heads = qkv[0, :2] / np.sqrt((qkv[0, :2] ** 2).mean(axis=1, keepdims=True) + 1e-6) * gamma
    (c, s) = rope[0].T
    a = heads[:, :2]
    b = heads[:, 2:]
    expected = np.concatenate([a * c - b * s, b * c + a * s], axis=1)
    np.testing.assert_allclose(q[0, 0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(caches[0].view(np.float32)[:4], expected[1], rtol=1e-5)
    assert (caches[1].view(np.float32)[:4] == qkv[0, 2]).all()


def test_dense_types_agree_with_f32() -> None:
    rng = np.random.default_rng(5)
    table = rng.normal(size=(6, 64)).astype(np.float32)
    x = rng.normal(size=(2, 64)).astype(np.float32)
    d = (np.abs(table.reshape(6, 2, 32)).max(axis=2) / 127).astype("<f2")
    codes = np.rint(table.reshape(6, 2, 32) / d[..., None]).astype(np.int8)
    q8 = np.concatenate([d[..., None].view(np.uint8), codes.view(np.uint8)], axis=2)
    forms = [table.view(np.uint8), table.astype("<f2").view(np.uint8), (table.view("<u4") >> 16).astype("<u2"), q8]
    for dtype, form in enumerate(forms):
        y = np.zeros((2, 8), dtype=np.float32)
        arrays = {"x": x, "w": np.ascontiguousarray(form).view(np.uint8), "y": y}
        run("matmul_dense", arrays, {"rows": 2, "outs": 6, "width": 64, "y_stride": 8, "y_first": 1}, DTYPE=dtype)
        np.testing.assert_allclose(y[:, 1:7], x @ table.T, atol=(1e-5, 2e-2, 2e-1, 2e-1)[dtype])
        assert (y[:, [0, 7]] == 0).all()
        embedded = np.zeros((2, 64), dtype=np.float32)
        step = np.array([[4, 0, 0, 0], [1, 0, 0, 0]], dtype=np.int32)
        arrays = {"table": np.ascontiguousarray(form).view(np.uint8)[2:], "step": step, "x": embedded}
        run("embed_rows", arrays, {"rows": 2, "hidden": 64, "first": 2, "count": 4}, DTYPE=dtype)
        np.testing.assert_allclose(embedded[0], table[4], atol=(0, 1e-3, 2e-2, 2e-2)[dtype])
        assert (embedded[1] == 0).all()


def test_a_short_output_is_refused() -> None:
    x = np.ones((2, 4), dtype=np.float32)
    w = np.ones((3, 4), dtype=np.float32).view(np.uint8)
    params = {"rows": 2, "outs": 3, "width": 4, "y_stride": 5, "y_first": 1}
    with pytest.raises(ValueError, match="up to element 9"):
        run("matmul_dense", {"x": x, "w": w, "y": np.zeros(8, dtype=np.float32)}, params, DTYPE=0)
