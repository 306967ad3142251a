"""Every kernel source, GPU ones too, against the numpy meanings, on whatever OpenCL device there is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from bitnet_core.hal.device import View, whole
from bitnet_core.kernels.catalogue import CATALOGUE, kv_row_bytes
from bitnet_core.kernels.spec import KernelSpec
from bitnet_core.reference.meanings import MEANINGS
from bitnet_opencl.device import OpenCLDevice
from bitnet_opencl.discovery import JOINED
from bitnet_opencl.recording import OpenCLKernel
from bitnet_opencl.tuning import DeviceClass, Profile

Arrays = dict[str, npt.NDArray[Any]]
DTYPES = {"u8": np.uint8, "i8": np.int8, "i32": np.int32, "f32": np.float32}


@pytest.fixture(params=[DeviceClass.CPU, DeviceClass.DISCRETE], ids=lambda kind: kind.value)
def device(request: pytest.FixtureRequest, opencl_device: OpenCLDevice) -> OpenCLDevice:
    """The device, with the constants of each class: a CPU device runs all the sources, only slowly."""
    kind: DeviceClass = request.param
    natural = opencl_device.profile
    opencl_device.profile = Profile(kind, natural.max_group, natural.lanes)
    return opencl_device


def run(
    device: OpenCLDevice,
    name: str,
    arrays: Arrays,
    params: Mapping[str, int | float],
    constants: Mapping[str, int],
    **tuning: int,
) -> tuple[Arrays, Arrays]:
    """(device's arrays, numpy's arrays) after the kernel; views are bound at an offset with a canary around."""
    spec = CATALOGUE[name]
    expected = {key: value.copy() for key, value in arrays.items()}
    with np.errstate(all="ignore"):
        MEANINGS[name]({key: value.reshape(-1) for key, value in expected.items()}, params, constants)
    chosen = {**constants, **device.tuning(spec, constants, params), **tuning}
    kernel = device.compile(spec, chosen)
    pad = 64
    views = []
    for binding in spec.bindings:
        data = np.ascontiguousarray(arrays[binding.name], dtype=DTYPES[binding.dtype])
        buffer = device.alloc(data.nbytes + 2 * pad)
        device.upload(whole(buffer), memoryview(np.full(buffer.nbytes, 0xA5, np.uint8)))
        views.append(View(buffer, pad, data.nbytes))
        device.upload(views[-1], memoryview(data).cast("B"))
    device.launch(kernel, spec.grid(params, chosen), views, spec.pack(params))
    found: Arrays = {}
    for binding, view in zip(spec.bindings, views, strict=True):
        raw = np.empty(view.nbytes + 2 * pad, np.uint8)
        device.download(whole(view.buffer), memoryview(raw))
        device.free(view.buffer)
        assert (raw[:pad] == 0xA5).all(), f"{binding.name}: wrote before its view"
        assert (raw[-pad:] == 0xA5).all(), f"{binding.name}: wrote behind its view"
        shape = arrays[binding.name].shape
        found[binding.name] = raw[pad:-pad].view(DTYPES[binding.dtype]).reshape(shape)
        if binding.access == "r":
            np.testing.assert_array_equal(
                found[binding.name].view(np.uint8), arrays[binding.name].reshape(shape).view(np.uint8)
            )
    return found, expected


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def table(r: np.random.Generator, rows: int, columns: int, dtype: int) -> npt.NDArray[np.uint8]:
    """A dense table with finite values."""
    x = r.standard_normal((rows, columns)).astype(np.float32)
    if dtype == 0:
        return x.view(np.uint8)
    if dtype == 1:
        return x.astype(np.float16).view(np.uint8)
    if dtype == 2:
        return (x.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    block, d_at = (34, 0) if dtype == 3 else (210, 208)
    raw = r.integers(0, 256, (rows, columns // (32 if dtype == 3 else 256), block), dtype=np.uint8)
    scales = np.abs(r.standard_normal(raw.shape[:2])).astype(np.float16)
    raw[:, :, d_at : d_at + 2] = scales[:, :, None].view(np.uint8)
    return raw.reshape(rows, -1)


def steps(r: np.random.Generator, rows: int) -> npt.NDArray[np.int32]:
    return np.stack([r.integers(0, 50, rows), np.arange(rows), np.arange(rows), np.zeros(rows)], axis=1).astype(
        np.int32
    )


@pytest.mark.parametrize(("dtype", "hidden"), [(0, 33), (1, 257), (2, 64), (3, 96), (4, 512)])
def test_embed_rows(device: OpenCLDevice, dtype: int, hidden: int) -> None:
    r = rng()
    step = steps(r, 5)
    step[:, 0] = [9, 10, 29, 30, -1]
    arrays = {"table": table(r, 20, hidden, dtype), "step": step, "x": np.full((5, hidden), 3, np.float32)}
    found, expected = run(
        device, "embed_rows", arrays, {"rows": 5, "hidden": hidden, "first": 10, "count": 20}, {"DTYPE": dtype}
    )
    np.testing.assert_array_equal(found["x"], expected["x"])


def close_codes(found: Arrays, expected: Arrays) -> None:
    """Codes may differ by one where a sum of squares rounds otherwise; zeros and NaN rows are the same."""
    np.testing.assert_allclose(found["scale"], expected["scale"], rtol=2e-6)
    difference = np.abs(found["q"].astype(int) - expected["q"])
    assert difference.max() <= 1
    assert difference.mean() < 0.01
    np.testing.assert_array_equal(found["qsum"], found["q"].sum(axis=1, dtype=np.int32))


def quantized(rows: int, stride: int) -> Arrays:
    return {
        "q": np.full((rows, stride), 9, np.int8),
        "scale": np.ones(rows, np.float32),
        "qsum": np.ones(rows, np.int32),
    }


@pytest.mark.parametrize(("norm", "width"), [(1, 257), (0, 128)])
def test_rms_norm_quantize(device: OpenCLDevice, norm: int, width: int) -> None:
    r = rng()
    x = r.standard_normal((6, width)).astype(np.float32)
    x[1] = 0
    x[2, 3] = np.nan
    x[3, width - 1] = np.inf
    x[4] = 1e30 if norm else 1e3
    stride = -(-width // 128) * 128
    arrays = {"x": x, "gamma": r.standard_normal(width).astype(np.float32), **quantized(6, stride)}
    params = {"rows": 6, "width": width, "stride": stride, "eps": 1e-5}
    found, expected = run(device, "rms_norm_quantize", arrays, params, {"NORM": norm})
    close_codes(found, expected)


@pytest.mark.parametrize(("act", "norm", "width"), [(0, 1, 200), (1, 0, 130), (1, 1, 64)])
def test_glu_norm_quantize(device: OpenCLDevice, act: int, norm: int, width: int) -> None:
    r = rng()
    x = (r.standard_normal((4, 2 * width)) * 20).astype(np.float32)
    x[1, 0] = np.nan
    x[2, :width] = -5
    stride = -(-width // 128) * 128
    arrays = {"gate_up": x, "gamma": r.standard_normal(width).astype(np.float32), **quantized(4, stride)}
    params = {"rows": 4, "width": width, "stride": stride, "eps": 1e-5}
    found, expected = run(device, "glu_norm_quantize", arrays, params, {"ACT": act, "NORM": norm})
    close_codes(found, expected)


def test_rms_norm(device: OpenCLDevice) -> None:
    r = rng()
    x = r.standard_normal((5, 259)).astype(np.float32)
    x[4, 0] = np.inf
    arrays = {
        "x": x,
        "index": np.array([3, 0, 4], np.int32),
        "gamma": r.standard_normal(259).astype(np.float32),
        "y": np.zeros((3, 259), np.float32),
    }
    found, expected = run(device, "rms_norm", arrays, {"rows": 3, "width": 259, "eps": 1e-5}, {})
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-5)


def ternary(r: np.random.Generator, rows: int, outs: int, width: int, stride: int, wide: bool = False) -> Arrays:
    q = r.integers(-128, 128, (rows, width), dtype=np.int8)
    codes = 2 if wide else r.integers(0, 3, (outs, width // 4, 4), dtype=np.uint8)
    if wide:
        q[:] = -128
    w = (np.broadcast_to(codes, (outs, width // 4, 4)) << np.array([6, 4, 2, 0], np.uint8)).sum(axis=2, dtype=np.uint8)
    return {
        "w": w.astype(np.uint8),
        "wscale": r.standard_normal(outs).astype(np.float32),
        "q": q,
        "scale": r.standard_normal(rows).astype(np.float32),
        "qsum": q.sum(axis=1, dtype=np.int32),
        "y": r.standard_normal((rows, stride)).astype(np.float32),
    }


SHAPES = [(1, 19, 128), (1, 64, 2560), (3, 33, 384), (8, 17, 256), (9, 70, 256), (67, 66, 128)]


@pytest.mark.parametrize(("rows", "outs", "width"), SHAPES)
@pytest.mark.parametrize("add", [0, 1])
def test_matmul_ternary(device: OpenCLDevice, rows: int, outs: int, width: int, add: int) -> None:
    arrays = ternary(rng(), rows, outs, width, outs + 5)
    params = {"rows": rows, "outs": outs, "width": width, "y_stride": outs + 5, "y_first": 3}
    found, expected = run(device, "matmul_ternary", arrays, params, {"ADD": add})
    np.testing.assert_array_equal(found["y"], expected["y"])


@pytest.mark.parametrize("rows", [1, 9])
def test_largest_sums_are_exact(device: OpenCLDevice, rows: int) -> None:
    arrays = ternary(rng(), rows, 8, 16384, 8, wide=True)
    params = {"rows": rows, "outs": 8, "width": 16384, "y_stride": 8, "y_first": 0}
    found, expected = run(device, "matmul_ternary", arrays, params, {"ADD": 0})
    np.testing.assert_array_equal(found["y"], expected["y"])


@pytest.mark.parametrize("block", [64, 128, 256])
@pytest.mark.parametrize("rows", [1, 5])
def test_matmul_ternary_block(device: OpenCLDevice, block: int, rows: int) -> None:
    r = rng()
    arrays = ternary(r, rows, 21, 640, 30)
    del arrays["qsum"]
    arrays["wscale"] = r.standard_normal((21, -(-640 // block))).astype(np.float32)
    params = {"rows": rows, "outs": 21, "width": 640, "y_stride": 30, "y_first": 2}
    found, expected = run(device, "matmul_ternary_block", arrays, params, {"ADD": rows % 2, "BLOCK": block})
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-4, atol=1e-2)


def cache_case(r: np.random.Generator, kv: int, n_kv: int, head_dim: int, blocks: int) -> npt.NDArray[np.uint8]:
    """Cache memory of `blocks` blocks with finite rows."""
    rows = r.standard_normal((blocks * n_kv * 64, head_dim)).astype(np.float32)
    if kv == 0:
        return rows.view(np.uint8)
    if kv == 1:
        return rows.astype(np.float16).view(np.uint8)
    raw = r.integers(0, 256, (len(rows), kv_row_bytes(kv, head_dim)), dtype=np.uint8)
    raw[:, :4] = np.abs(rows[:, :1]).copy().view(np.uint8)
    return raw


@pytest.mark.parametrize("kv", [0, 1, 2])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_rope_store_kv(device: OpenCLDevice, kv: int, interleaved: int) -> None:
    r = rng()
    heads, n_kv, head_dim, rows = 3, 2, 10, 5
    step = np.array([[0, 0, 70, 0], [0, 3, 5, 0], [0, -1, 3, 0], [0, 2, -1, 0], [0, 7, 127, 0]], np.int32)
    qkv = r.standard_normal((rows, (heads + 2 * n_kv) * head_dim)).astype(np.float32)
    qkv[4, heads * head_dim :] = 0
    arrays = {
        "qkv": qkv,
        "step": step,
        "rope": r.standard_normal((8, head_dim)).astype(np.float32),
        "q": np.zeros((rows, heads * head_dim), np.float32),
        "k_cache": cache_case(r, kv, n_kv, head_dim, 2),
        "v_cache": cache_case(r, kv, n_kv, head_dim, 2),
    }
    params = {
        "rows": rows,
        "n_heads": heads,
        "n_kv_heads": n_kv,
        "head_dim": head_dim,
        "row_bytes": kv_row_bytes(kv, head_dim),
    }
    found, expected = run(device, "rope_store_kv", arrays, params, {"KV": kv, "INTERLEAVED": interleaved})
    np.testing.assert_allclose(found["q"], expected["q"], rtol=1e-5, atol=1e-6)
    for name in ("k_cache", "v_cache"):
        if kv == 0:
            np.testing.assert_allclose(
                found[name].view(np.float32), expected[name].view(np.float32), rtol=1e-5, atol=1e-6
            )
        else:  # a value on the edge between two codes may take the other one
            assert (found[name] != expected[name]).sum() <= 2


def check_attention(device: OpenCLDevice, kv: int, head_dim: int, rows: int = 5) -> None:
    r = rng()
    heads, n_kv, blocks, max_blocks = 4, 2, 14, 7
    positions = [(0, 0), (63, 1), (400, 0), (-1, 0), (64, 1), (447, 1), (300, 0)]
    step = np.array([[0, position, 0, sequence] for position, sequence in positions[:rows]], np.int32)
    row_bytes = kv_row_bytes(kv, head_dim)
    arrays = {
        "q": r.standard_normal((rows, heads * head_dim)).astype(np.float32),
        "k_cache": cache_case(r, kv, n_kv, head_dim, blocks),
        "v_cache": cache_case(r, kv, n_kv, head_dim, blocks),
        "step": step,
        "tables": r.permutation(blocks).reshape(2, max_blocks).astype(np.int32),
        "out": np.ones((rows, heads * head_dim), np.float32),
    }
    params = {
        "rows": rows,
        "n_heads": heads,
        "n_kv_heads": n_kv,
        "head_dim": head_dim,
        "row_bytes": row_bytes,
        "max_blocks": max_blocks,
        "scale": head_dim**-0.5 * (0.02 if kv == 2 else 1),
    }
    found, expected = run(device, "attention", arrays, params, {"KV": kv})
    limit = np.abs(expected["out"]).max()
    np.testing.assert_allclose(found["out"], expected["out"], rtol=1e-4, atol=2e-6 * limit)


@pytest.mark.parametrize(("kv", "head_dim"), [(1, 10), (0, 64), (1, 64), (1, 128), (2, 80), (2, 128), (1, 257)])
def test_attention(device: OpenCLDevice, kv: int, head_dim: int) -> None:
    check_attention(device, kv, head_dim)


@pytest.mark.parametrize(("kv", "units"), [(0, 5), (1, 40), (2, 132)])
def test_attention_split_over_groups(
    opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch, kv: int, units: int
) -> None:
    """With one kernel and its memory for several launches, of which each leaves the counts of arrivals at zero."""
    opencl_device.profile = Profile(DeviceClass.DISCRETE, 128, 32, units=units, ptx=True)
    kernels: dict[str, OpenCLKernel] = {}
    compile_new = opencl_device.compile

    def compile_once(spec: KernelSpec, constants: Mapping[str, int]) -> OpenCLKernel:
        key = str(sorted(constants.items()))
        if key not in kernels:
            kernels[key] = compile_new(spec, constants)
        return kernels[key]

    monkeypatch.setattr(opencl_device, "compile", compile_once)
    for rows in (5, 7, 5):
        check_attention(opencl_device, kv, 128, rows)
    assert len(kernels) == 1


@pytest.fixture
def joining(opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch) -> OpenCLDevice:
    """The device as if it offered the kernels that join others."""
    info = replace(opencl_device.info, kernels=opencl_device.info.kernels | JOINED)
    monkeypatch.setattr(opencl_device, "info", info)
    opencl_device.profile = Profile(DeviceClass.DISCRETE, 128, 32, units=20, ptx=True)
    return opencl_device


@pytest.mark.parametrize(("norm", "columns"), [(1, 4500), (0, 200)])
def test_norm_matmul(joining: OpenCLDevice, norm: int, columns: int) -> None:
    r, rows, outs, width = rng(), 2, 37, -(-columns // 128) * 128
    weights = ternary(r, rows, outs, width, outs + 5)
    x = r.standard_normal((rows, columns)).astype(np.float32)
    if norm == 0:
        x[1, 3] = np.nan
    arrays = {name: weights[name] for name in ("w", "wscale", "y")} | {
        "x": x,
        "gamma": r.standard_normal(columns).astype(np.float32),
    }
    params = {"rows": rows, "columns": columns, "outs": outs, "width": width, "y_stride": outs + 5, "y_first": 3}
    found, expected = run(joining, "norm_matmul", arrays, {**params, "eps": 1e-5}, {"NORM": norm, "ADD": norm})
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-4, atol=0.02 * (norm + 1))


@pytest.mark.parametrize(("act", "columns"), [(0, 256), (1, 300)])
def test_norm_matmul_glu(joining: OpenCLDevice, act: int, columns: int) -> None:
    r, rows, outs, width = rng(), 2, 37, -(-columns // 128) * 128
    weights = ternary(r, rows, 2 * outs, width, 1)
    arrays = {name: weights[name] for name in ("w", "wscale")} | {
        "x": r.standard_normal((rows, columns)).astype(np.float32),
        "gamma": r.standard_normal(columns).astype(np.float32),
        "m": np.zeros((rows, outs), np.float32),
    }
    params = {"rows": rows, "columns": columns, "outs": outs, "width": width, "eps": 1e-5}
    found, expected = run(joining, "norm_matmul_glu", arrays, params, {"NORM": 1, "ACT": act})
    np.testing.assert_allclose(found["m"], expected["m"], rtol=1e-3, atol=1e-3 * np.abs(expected["m"]).max())


@pytest.mark.parametrize(("kv", "head_dim", "interleaved"), [(0, 32, 1), (1, 128, 0), (2, 10, 1)])
def test_rope_attention(joining: OpenCLDevice, kv: int, head_dim: int, interleaved: int) -> None:
    r, heads, n_kv, blocks, max_blocks = rng(), 4, 2, 12, 4
    tables = r.permutation(blocks).reshape(3, max_blocks).astype(np.int32)
    step = np.array([[0, 0, 0, 0], [0, 200, 0, 1], [0, -1, 3, 2], [0, 70, -1, 2]], np.int32)
    for row in step[:2]:
        row[2] = tables[row[3], row[1] // 64] * 64 + row[1] % 64
    row_bytes = kv_row_bytes(kv, head_dim)
    arrays = {
        "qkv": r.standard_normal((4, (heads + 2 * n_kv) * head_dim)).astype(np.float32),
        "step": step,
        "rope": r.standard_normal((256, head_dim)).astype(np.float32),
        "k_cache": cache_case(r, kv, n_kv, head_dim, blocks),
        "v_cache": cache_case(r, kv, n_kv, head_dim, blocks),
        "tables": tables,
        "out": np.ones((4, heads * head_dim), np.float32),
    }
    params = {
        "rows": 4,
        "n_heads": heads,
        "n_kv_heads": n_kv,
        "head_dim": head_dim,
        "row_bytes": row_bytes,
        "max_blocks": max_blocks,
        "scale": head_dim**-0.5 * (0.02 if kv == 2 else 1),
    }
    found, expected = run(joining, "rope_attention", arrays, params, {"KV": kv, "INTERLEAVED": interleaved})
    limit = np.abs(expected["out"]).max()
    np.testing.assert_allclose(found["out"], expected["out"], rtol=1e-3, atol=1e-4 * limit)
    for name in ("k_cache", "v_cache"):
        assert (found[name] != expected[name]).sum() <= (16 if kv == 0 else 2)


@pytest.mark.parametrize(("dtype", "width", "rows"), [(0, 35, 1), (1, 72, 3), (2, 257, 2), (3, 96, 5), (4, 512, 1)])
def test_matmul_dense(device: OpenCLDevice, dtype: int, width: int, rows: int) -> None:
    r = rng()
    outs = 75
    arrays = {
        "x": r.standard_normal((rows, width)).astype(np.float32),
        "w": table(r, outs, width, dtype),
        "y": np.zeros((rows, outs + 4), np.float32),
    }
    params = {"rows": rows, "outs": outs, "width": width, "y_stride": outs + 4, "y_first": 4}
    found, expected = run(device, "matmul_dense", arrays, params, {"DTYPE": dtype})
    limit = np.abs(expected["y"]).max()
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-4, atol=1e-6 * limit)


@pytest.mark.parametrize("vocab", [1021, 5003])
def test_argmax_advance(device: OpenCLDevice, vocab: int) -> None:
    device.profile = replace(device.profile, ptx=device.profile.device_class is DeviceClass.DISCRETE)
    r = rng()
    rows, ring = 6, 3
    logits = r.standard_normal((rows, vocab)).astype(np.float32)
    logits[0, [4, 900]] = 50  # the lower index of equals
    logits[1, 77] = np.nan
    logits[2] = -np.inf
    step = np.array(
        [[1, 5, 5, 0], [1, 6, 6, 0], [1, 63, 63, 0], [1, 63, 63, 1], [1, -1, -1, 0], [1, 127, 127, 0], [9, 9, 9, 9]],
        np.int32,
    )
    history = np.zeros((7, ring + 1), np.int32)
    history[0, 0] = 3  # full: counted, not kept
    arrays = {
        "logits": logits,
        "index": np.array([0, 1, 2, 3, 4, 5], np.int32),
        "tables": np.array([[0, 3], [1, -1]], np.int32),
        "step": step,
        "history": history,
    }
    params = {"rows": rows, "vocab": vocab, "max_blocks": 2, "ring": ring}
    found, expected = run(device, "argmax_advance", arrays, params, {})
    np.testing.assert_array_equal(found["step"], expected["step"])
    np.testing.assert_array_equal(found["history"], expected["history"])


@pytest.mark.parametrize(("vocab", "k"), [(1, 1), (300, 256), (5003, 40)])
def test_top_k(device: OpenCLDevice, vocab: int, k: int) -> None:
    r = rng()
    logits = r.standard_normal((3, vocab)).astype(np.float32)
    logits[1] = np.round(logits[1])  # many equal ones, -0 and +0 among them
    logits[2, ::7] = np.nan
    logits[2, ::5] = np.inf
    arrays = {"logits": logits, "ids": np.zeros((3, k), np.int32), "values": np.zeros((3, k), np.float32)}
    found, expected = run(device, "top_k", arrays, {"rows": 3, "vocab": vocab, "k": k}, {})
    np.testing.assert_array_equal(found["ids"], expected["ids"])
    np.testing.assert_array_equal(found["values"], expected["values"])
