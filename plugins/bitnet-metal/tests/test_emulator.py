"""Faults of wrong kernels that the emulator reports: divergent threads and missing barriers, in both orders of
threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from emulator import msl

HERE = Path(__file__).parent
HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
SUM = """kernel void total(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
                  uint tid [[thread_index_in_threadgroup]]) {
    threadgroup float room[64];
    room[tid] = x[tid];
    BARRIER
    for (uint half_way = 32; half_way > 0; half_way /= 2) {
        if (tid < half_way) room[tid] += room[tid + half_way];
        BARRIER
    }
    if (tid == 0) y[0] = room[0];
}
"""
FENCE = "threadgroup_barrier(mem_flags::mem_threadgroup);"


def total(text: str) -> float:
    x, y = np.arange(64, dtype=np.float32), np.zeros(1, np.float32)
    msl.library(HEAD + text).run("total", {}, {0: x.ctypes.data, 1: y.ctypes.data}, (1, 1, 1), 64)
    return float(y[0])


@pytest.mark.usefixtures("tables")
def test_parted_threads_are_an_error() -> None:
    assert total(SUM.replace("BARRIER", FENCE)) == 2016
    for body in (f"if (tid < 8) {FENCE}", "if (tid % 2) y[0] = simd_sum(x[tid]);"):
        wrong = SUM[: SUM.index("    threadgroup float")] + body + "}\n"
        with pytest.raises(RuntimeError, match="not every thread"):
            total(wrong)


PROBE = """
import sys
sys.path.insert(0, {here!r})
from test_emulator import FENCE, SUM, total
print(total(SUM.replace("BARRIER", FENCE)), total(SUM.replace("BARRIER", FENCE, 1).replace("BARRIER", "")),
      total(SUM.replace("BARRIER", "", 1).replace("BARRIER", FENCE)))
"""


def sums(**environment: str) -> list[float]:
    """Return the emulator's results of a complete kernel, and of two in which a barrier is missing."""
    command = [sys.executable, "-c", PROBE.format(here=str(HERE))]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment})
    return [float(word) for word in run.stdout.split()]


@pytest.mark.usefixtures("tables")
def test_a_left_out_barrier_shows_in_one_of_the_orders() -> None:
    whole, loop, first = zip(sums(), sums(SIMT_REVERSE="1"), strict=True)
    assert whole == (2016, 2016)
    assert set(loop) != {2016.0}
    assert set(first) != {2016.0}


@pytest.mark.usefixtures("tables")
def test_simdgroup_matrices() -> None:
    text = """kernel void product(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
                    uint tid [[thread_index_in_threadgroup]]) {
    threadgroup half a[64];
    threadgroup half b[64];
    threadgroup float c[64];
    for (uint i = tid; i < 64; i += 32) {
        a[i] = half(x[i]);
        b[i] = half(x[64 + i]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_half8x8 left, right;
    simdgroup_load(left, a, 8);
    simdgroup_load(right, b, 8, 0, true);
    simdgroup_float8x8 sums = make_filled_simdgroup_matrix<float, 8>(1.0f);
    simdgroup_multiply_accumulate(sums, left, right, sums);
    simdgroup_store(sums, c, 8);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = tid; i < 64; i += 32) y[i] = c[i];
}
"""
    x = np.random.default_rng(1).integers(-9, 9, (2, 8, 8)).astype(np.float32)
    y = np.zeros((8, 8), np.float32)
    msl.library(HEAD + text).run("product", {}, {0: x.ctypes.data, 1: y.ctypes.data}, (1, 1, 1), 32)
    assert (y == 1 + x[0] @ x[1].T).all()


@pytest.mark.usefixtures("tables")
def test_kernels_with_threads_in_the_other_order() -> None:
    large = ("8640", "32767", "t512", "many", "position-4095", "128256")
    chosen = " and not ".join(("test_kernel and not offered and not compiles", *large))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(HERE / "test_conformance.py"),
        "-k",
        chosen,
    ]
    environment = {**os.environ, "SIMT_REVERSE": "1"}
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
