"""Measure the speed of each kernel at the shapes of BitNet b1.58 2B-4T; no test of correctness."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bitnet_hal.device import View
from bitnet_hal.kernels.catalogue import CATALOGUE, kv_row_bytes
from bitnet_hal.kernels.spec import ParamDict, Params
from bitnet_hal.testing.cases.case import DTYPES
from bitnet_hal.testing.workbench import Bench, Prepared

HIDDEN = 2560
FFN = 6912
VOCAB = 128256
HEADS = 20
KV_HEADS = 5
HEAD_DIM = 128
CONTEXT = 512
"""Cached positions of a decode step, and rows of a prompt."""
ADVANCES = 4096
"""Positions that argmax_advance can advance during a measurement: more than (REPLAYS + 2) * MOST launches."""
MOST = 200
"""Maximum launches in one recording."""
MEASURED_S = 0.1
REPLAYS = 5


@dataclass(frozen=True)
class Shape:
    """A launch to time. `sizes` holds the elements of each binding, in order: the traffic of the launch."""

    kernel: str
    label: str
    params: Params
    sizes: tuple[int, ...]
    constants: dict[str, int]

    @property
    def id(self) -> str:
        """Return the pytest id."""
        return f"{self.kernel}-{self.label}-t{self.params['rows']}"

    @property
    def nbytes(self) -> int:
        """Return the bytes of all operands."""
        spec = CATALOGUE[self.kernel]
        return sum(n * np.dtype(DTYPES[b.dtype]).itemsize for b, n in zip(spec.bindings, self.sizes, strict=True))


@dataclass(frozen=True)
class SpeedResult:
    """The median time of a launch. device_us: by the device's clock, None without the feature "timings"."""

    kernel: str
    label: str
    rows: int
    us: float
    device_us: float | None
    gb_per_s: float

    @classmethod
    def row(cls, shape: Shape, seconds: float, device_seconds: float | None) -> SpeedResult:
        """Build the result of a shape from seconds."""
        fastest = device_seconds or seconds
        return cls(
            shape.kernel,
            shape.label,
            int(shape.params["rows"]),
            seconds * 1e6,
            None if device_seconds is None else device_seconds * 1e6,
            shape.nbytes / fastest / 1e9,
        )


def _ternary(label: str, rows: int, outs: int, width: int) -> Iterator[Shape]:
    params: ParamDict = {"rows": rows, "outs": outs, "width": width, "y_stride": outs, "y_first": 0}
    weights = outs * width // 4
    q = rows * width
    yield Shape("matmul_ternary", label, params, (weights, outs, q, rows, rows, rows * outs), {"ADD": 0})
    if label == "gate_up":
        sizes = (weights, outs * (width // 256), q, rows, rows * outs)
        yield Shape("matmul_ternary_block", label, params, sizes, {"ADD": 0, "BLOCK": 256})


def shapes() -> Iterator[Shape]:
    """Return the launches that decode one token at position CONTEXT, and those of a prompt of CONTEXT tokens."""
    for rows in (1, CONTEXT):
        x = rows * HIDDEN
        yield Shape(
            "embed_rows",
            "hidden",
            {"rows": rows, "hidden": HIDDEN, "first": 0, "count": rows},
            (2 * x, 4 * rows, x),
            {"DTYPE": 1},
        )
        eps = {"eps": 1e-5}
        norm = {"rows": rows, "width": HIDDEN, "stride": HIDDEN, **eps}
        yield Shape("rms_norm_quantize", "hidden", norm, (x, HIDDEN, x, rows, rows), {"NORM": 1})
        yield from _ternary("qkv", rows, (HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN)
        yield from _ternary("gate_up", rows, 2 * FFN, HIDDEN)
        yield from _ternary("down", rows, HIDDEN, FFN)
        yield from _attention(rows)
        glu = {"rows": rows, "width": FFN, "stride": FFN, **eps}
        wide = rows * FFN
        yield Shape("glu_norm_quantize", "ffn", glu, (2 * wide, FFN, wide, rows, rows), {"ACT": 0, "NORM": 1})
    final = {"rows": 1, "width": HIDDEN, "eps": 1e-5}
    yield Shape("rms_norm", "hidden", final, (HIDDEN, 1, HIDDEN, HIDDEN), {})
    head = {"rows": 1, "outs": VOCAB, "width": HIDDEN, "y_stride": VOCAB, "y_first": 0}
    yield Shape("matmul_dense", "head-f16", head, (HIDDEN, 2 * VOCAB * HIDDEN, VOCAB), {"DTYPE": 1})
    yield Shape("matmul_dense", "head-q6_K", head, (HIDDEN, VOCAB * HIDDEN // 256 * 210, VOCAB), {"DTYPE": 4})
    greedy = {"rows": 1, "vocab": VOCAB, "max_blocks": ADVANCES // 64, "ring": 64}
    yield Shape("argmax_advance", "vocab", greedy, (VOCAB, 1, ADVANCES // 64, 4, 65), {})
    yield Shape("top_k", "k40", {"rows": 1, "vocab": VOCAB, "k": 40}, (VOCAB, 40, 40), {})


def _attention(rows: int) -> Iterator[Shape]:
    row_bytes = kv_row_bytes(1, HEAD_DIM)
    cache = CONTEXT * KV_HEADS * row_bytes
    q = rows * HEADS * HEAD_DIM
    heads = {"rows": rows, "n_heads": HEADS, "n_kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "row_bytes": row_bytes}
    qkv = rows * (HEADS + 2 * KV_HEADS) * HEAD_DIM
    sizes = (qkv, 4 * rows, CONTEXT * HEAD_DIM, q, cache, cache)
    yield Shape("rope_store_kv", "f16", heads, sizes, {"KV": 1, "INTERLEAVED": 0})
    blocks = CONTEXT // 64
    params = {**heads, "max_blocks": blocks, "scale": HEAD_DIM**-0.5}
    yield Shape("attention", f"f16-p{CONTEXT}", params, (q, cache, cache, 4 * rows, blocks, q), {"KV": 1})


def _contents(shape: Shape, name: str, size: int, dtype: str) -> np.ndarray[Any, np.dtype[Any]]:
    """Return small numbers, or for `step` and `tables` valid positions, slots and blocks."""
    rows = int(shape.params["rows"])
    if name == "step":
        first = CONTEXT - rows if shape.kernel in ("rope_store_kv", "attention") else 0
        positions = np.arange(first, first + rows)
        step = np.stack([positions, positions, positions, np.zeros(rows, dtype=np.int64)], axis=1)
        return step.astype(np.int32).reshape(-1)
    if name == "tables":
        return np.arange(size, dtype=np.int32)
    if dtype in ("u8", "i8"):
        return np.resize(np.arange(61, dtype=np.uint8), size).view(DTYPES[dtype])
    return np.resize(np.linspace(0, 0.9, 97), size).astype(DTYPES[dtype])


def fits(bench: Bench, shape: Shape) -> bool:
    """Return True if the device can bind the largest operand and hold all of them."""
    spec = CATALOGUE[shape.kernel]
    info = bench.info
    free = bench.device.free_memory()
    largest = max(n * np.dtype(DTYPES[b.dtype]).itemsize for b, n in zip(spec.bindings, shape.sizes, strict=True))
    limits = [limit for limit in (info.max_binding, info.max_allocation) if limit]
    return all(largest <= limit for limit in limits) and (free < 0 or shape.nbytes < free // 2)


def measure(bench: Bench, shape: Shape) -> SpeedResult:
    """Return the median time of a launch, replayed from a recording of launches of the same shape."""
    spec = CATALOGUE[shape.kernel]
    device = bench.device
    compiled, grid = bench.compiled(spec, shape.constants, shape.params)
    views = {}
    for binding, size in zip(spec.bindings, shape.sizes, strict=True):
        contents = _contents(shape, binding.name, size, binding.dtype)
        buffer = bench.alloc(contents.nbytes)
        views[binding.name] = View(buffer, 0, contents.nbytes)
        bench.write(views[binding.name], contents)
    prepared = Prepared(compiled, grid, views, spec.pack(shape.params))
    once = min(_replayed(bench, prepared, 1))
    count = max(1, min(MOST, int(MEASURED_S / max(once, 1e-6))))
    seconds = statistics.median(_replayed(bench, prepared, count)) if count > 1 else once
    return SpeedResult.row(
        shape, seconds, _by_the_device(bench, prepared) if "timings" in device.info.features else None
    )


def _replayed(bench: Bench, prepared: Prepared, count: int) -> list[float]:
    """Return the seconds per launch of each of REPLAYS replays, or of one replay if a launch takes longer than
    MEASURED_S."""
    device = bench.device
    with device.record() as recording:
        for _ in range(count):
            prepared.run(device)
    device.replay(recording)
    device.synchronize()
    times: list[float] = []
    while len(times) < REPLAYS and sum(times) * count < 5 * MEASURED_S:
        start = time.perf_counter()
        device.replay(recording)
        device.synchronize()
        times.append((time.perf_counter() - start) / count)
    recording.close()
    return times


def _by_the_device(bench: Bench, prepared: Prepared) -> float:
    with bench.device.record() as recording:
        for _ in range(REPLAYS):
            prepared.run(bench.device)
    timed: Sequence[tuple[str, float]] = bench.device.timings(recording)  # type: ignore[attr-defined]  # a TimedDevice, as its features say
    recording.close()
    return statistics.median(seconds for _, seconds in timed)
