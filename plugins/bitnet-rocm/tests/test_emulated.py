"""Host code and kernels of the plugin on the emulated HIP runtime, in processes that find it."""

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

SLOW = (
    "shipped_model",
    "beside_others",
    "depend_on_other_requests",
    "ten_thousand",
    "nothing_behind",
    "everything_back",
    "512",
    "many",
    "8640",
    "32767",
    "70001",
)
"""Rules of the kit that take the emulator minutes: large shapes, and texts of whole models."""
WHOLE, FIRST, SECOND, THIRD, FOURTH = "1/1", "1/4", "2/4", "3/4", "4/4"
"""Parts of the cases of the kit's kernels."""
TESTED_APART = "test_kernel_is_offered or test_every_kernel_compiles or delta_nets"
"""Rules that other tests repeat: every architecture's kernels, and test_delta_nets_and_rotated_weights."""
PRODUCTS = "test_kernel and matmul_ternary and not norm"
RUNS: dict[str, tuple[str, str, dict[str, str]]] = {
    "waves of 32": (f"TestConformance and not ({TESTED_APART})", FIRST, {}),
    "MFMA of gfx942": (PRODUCTS, FIRST, {"HIP_ON_CPU_GFX": "gfx942"}),
    "WMMA of gfx12": (PRODUCTS, FIRST, {"HIP_ON_CPU_GFX": "gfx1201"}),
    "no graphs": ("recording or replay", WHOLE, {"HIP_ON_CPU_NO_GRAPHS": "1"}),
    "an APU": ("buffer or wrap or upload or round_trip", WHOLE, {"HIP_ON_CPU_INTEGRATED": "1"}),
}
"""Parts of the conformance kit, and the properties of the emulated GPU for each."""
AGAIN = {
    "other cases in waves of 32": ("TestConformance and test_kernel", SECOND, {}),
    "further cases in waves of 32": ("TestConformance and test_kernel", THIRD, {}),
    "the last cases in waves of 32": ("TestConformance and test_kernel", FOURTH, {}),
    "MFMA of gfx942, all cases": (PRODUCTS, WHOLE, {"HIP_ON_CPU_GFX": "gfx942"}),
    "WMMA of gfx12, all cases": (PRODUCTS, WHOLE, {"HIP_ON_CPU_GFX": "gfx1201"}),
    "waves of 64 in the other order": ("TestConformance", WHOLE, {"HIP_ON_CPU_GFX": "gfx90a", "SIMT_REVERSE": "1"}),
}


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the variables with which hip-python finds the emulated runtime."""
    if shutil.which("clang++-19") is None or platform.machine() != "x86_64":
        pytest.skip("the emulator needs clang++-19 (apt install clang-19) and an x86-64 machine")
    return build(tmp_path_factory.mktemp("hip"))


def process(command: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a program of Python's that finds the runtime."""
    everything = {**os.environ, **variables}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=everything, check=False)


@pytest.mark.parametrize("name", [*RUNS, *(pytest.param(name, marks=pytest.mark.again) for name in AGAIN)])
def test_conformance(name: str, variables: dict[str, str]) -> None:
    chosen, part, gpu = (RUNS | AGAIN)[name]
    kit = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--bitnet-part", part, str(HERE / "emulated/conformance.py")]
    result = process([*kit, "-k", " and not ".join((f"({chosen})", *SLOW))], {**variables, **gpu})
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-2000:]
    assert " passed" in result.stdout


GOLDEN = HERE.parents[2] / "core" / "tests" / "golden" / "bonsai2" / "rotated-PTQ1_0.gguf"
BONSAI2 = f"""
import bitnet_core
prompts = [[38 * n % 300 for n in range(1, count)] for count in (9, 80)]
for device in ("numpy", "rocm"):
    with bitnet_core.load({str(GOLDEN)!r}, device) as model:
        print([one.tokens for one in model.generate(prompts, max_tokens=8, temperature=0)])
"""


@pytest.mark.parametrize("gfx", ["gfx1100", "gfx90a"])
def test_delta_nets_and_rotated_weights(gfx: str, variables: dict[str, str]) -> None:
    """A tiny Bonsai 2 generates the same tokens as numpy, in waves of 32 threads and of 64."""
    result = process(["-c", BONSAI2], {**variables, "HIP_ON_CPU_GFX": gfx})
    assert result.returncode == 0, result.stderr
    numpy, rocm = result.stdout.splitlines()
    assert numpy == rocm


PROBE = """
import ctypes
import numpy as np
from bitnet_hal.errors import GpuError
from bitnet_hal.device import Tuning, whole
from bitnet_hal.kernels.base import RMS_NORM
from bitnet_rocm import compile
from bitnet_rocm.describe import device_infos
from bitnet_rocm.device import RocmDevice
from bitnet_rocm.errors import check

device = RocmDevice(device_infos()[0])
source = 'extern "C" void rms_norm(const float*, const int*, const float*, float*, unsigned, unsigned, float) {%s}'
for body in ("if (threadIdx.x < 3) __syncthreads();", "simt::fail();"):
    compile.source = lambda *_: source % body
    kernel = device.compile(RMS_NORM, {}, Tuning(private={"GROUP": 32}))
    try:
        views = [whole(device.alloc(64)) for _ in range(4)]
        device.launch(kernel, (1, 1, 1), views, RMS_NORM.pack({"rows": 1, "width": 1, "eps": 0.0}))
    except GpuError as exc:
        print(type(exc).__name__, exc.code)
    device = RocmDevice(device_infos()[0])
buffer, api = device.alloc(64), device.api
try:
    source = (ctypes.c_char * 64)()
    check(api.hipMemcpy(buffer.address + 32, source, 64, api.hipMemcpyKind.hipMemcpyHostToDevice), "copy")
except GpuError as exc:
    print(type(exc).__name__, exc.code)
wrapped = device.wrap(memoryview(bytearray(4096)))
print(wrapped is not None, device.info.type.value, device.info.extra["architecture"])
"""


def probe(variables: dict[str, str], **environment: str) -> list[str]:
    """Run PROBE and return its output."""
    result = process(["-c", PROBE], {**variables, **environment})
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_what_the_emulator_refuses(variables: dict[str, str]) -> None:
    lines = probe(variables)
    assert (
        lines[:2] == ["DeviceLostError hipErrorLaunchFailure (719)"] * 2
    )  # a divergent barrier; a lane of the other half
    assert lines[2] == "LaunchError hipErrorInvalidValue (1)"  # a copy past the end of an allocation
    assert lines[3] == "False gpu gfx1100"


def test_an_apu_reads_the_hosts_memory(variables: dict[str, str]) -> None:
    lines = probe(variables, HIP_ON_CPU_INTEGRATED="1", HIP_ON_CPU_GFX="gfx90a:sramecc+:xnack-")
    assert lines[3] == "True integrated gfx90a:sramecc+:xnack-"
