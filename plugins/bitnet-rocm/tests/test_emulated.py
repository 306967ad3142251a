"""Host code and kernels of the plugin on the emulated HIP runtime, in a process that finds it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from emulator.build import build  # noqa: E402 - found through the path above

FEW = "test_kernel and not is_offered and (matmul_ternary or rope or top_k or norm_quantize or argmax)"
SLOW = ("shipped_model", "ten_thousand", "nothing_behind", "everything_back", "512", "many", "8640", "32767", "70001")


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Where hip-python finds the runtime."""
    if shutil.which("clang++-19") is None or platform.machine() != "x86_64":
        pytest.skip("the emulator needs clang++-19 and an x86-64 machine")
    return build(tmp_path_factory.mktemp("hip"))


def run(variables: dict[str, str], chosen: str, **environment: str) -> None:
    """A pytest process on emulated/."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "emulated/conformance.py")]
    expression = " and not ".join((f"({chosen})", *SLOW))
    everything = {**os.environ, **variables, **environment}
    result = subprocess.run([*command, "-k", expression], capture_output=True, text=True, env=everything, check=False)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-2000:]
    assert " passed" in result.stdout


def test_conformance_kit_with_waves_of_32(variables: dict[str, str]) -> None:
    run(variables, "TestConformance")


def test_kernels_with_waves_of_64_and_the_other_order_of_threads(variables: dict[str, str]) -> None:
    run(variables, FEW, HIP_ON_CPU_WAVE="64", SIMT_REVERSE="1")


def test_recordings_where_there_are_no_graphs(variables: dict[str, str]) -> None:
    run(variables, "recording or replay", HIP_ON_CPU_NO_GRAPHS="1")


def test_memory_of_an_apu(variables: dict[str, str]) -> None:
    run(variables, "buffer or wrap or upload or round_trip", HIP_ON_CPU_INTEGRATED="1")


PROBE = """
import ctypes
import numpy as np
from bitnet_core.errors import GpuError
from bitnet_core.hal import Tuning, whole
from bitnet_core.kernels.base import RMS_NORM
from bitnet_rocm import compile
from bitnet_rocm.device import RocmDevice
from bitnet_rocm.errors import check

device = RocmDevice(0)
source = 'extern "C" void rms_norm(const float*, const int*, const float*, float*, unsigned, unsigned, float) {%s}'
for body in ("if (threadIdx.x < 3) __syncthreads();", "simt::fail();"):
    compile.source = lambda *_: '#include "hip_on_cpu.h"' + chr(10) + source % body
    kernel = device.compile(RMS_NORM, {}, Tuning(private={"GROUP": 32}))
    try:
        views = [whole(device.alloc(64)) for _ in range(4)]
        device.launch(kernel, (1, 1, 1), views, RMS_NORM.pack({"rows": 1, "width": 1, "eps": 0.0}))
    except GpuError as exc:
        print(type(exc).__name__, exc.code)
    device = RocmDevice(0)
buffer, api = device.alloc(64), device._api
try:
    source = (ctypes.c_char * 64)()
    check(api.hipMemcpy(buffer.address + 32, source, 64, api.hipMemcpyKind.hipMemcpyHostToDevice), "copy")
except GpuError as exc:
    print(type(exc).__name__, exc.code)
wrapped = device.wrap(memoryview(bytearray(4096)))
print(wrapped is not None, device.info.type.value, device.info.extra["architecture"])
"""


def probe(variables: dict[str, str], **environment: str) -> list[str]:
    """What PROBE prints."""
    everything = {**os.environ, **variables, **environment}
    command = [sys.executable, "-c", PROBE]
    return subprocess.run(command, capture_output=True, text=True, env=everything, check=True).stdout.splitlines()


def test_what_the_emulator_refuses(variables: dict[str, str]) -> None:
    lines = probe(variables)
    assert (
        lines[:2] == ["DeviceLostError hipErrorLaunchFailure (719)"] * 2
    )  # a divergent barrier; a lane of the other half
    assert lines[2] == "LaunchError hipErrorInvalidValue (1)"  # a copy past the end of an allocation
    assert lines[3] == "False gpu gfx1100"


def test_an_apu_reads_the_hosts_memory(variables: dict[str, str]) -> None:
    lines = probe(variables, HIP_ON_CPU_INTEGRATED="1", HIP_ON_CPU_WAVE="64")
    assert lines[3] == "True integrated gfx90a:sramecc+:xnack-"
