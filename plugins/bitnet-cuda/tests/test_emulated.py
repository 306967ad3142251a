"""Host code and kernels of the plugin, executed on the CPU by the emulator, in a process that finds its libcuda."""

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

pytestmark = pytest.mark.slow

DP4A = "TestDp4a and test_kernel and matmul_ternary and not 512 and not many and not 8640"


def run(folder: Path, *arguments: str, file: str = "conformance.py", **environment: str) -> str:
    """Run pytest on a file of emulated/ in a process and return its output."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "emulated" / file)]
    variables = {**os.environ, "LD_LIBRARY_PATH": str(folder), "XDG_CACHE_HOME": str(folder), **environment}
    result = subprocess.run([*command, *arguments], capture_output=True, text=True, env=variables, check=False)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-2000:]
    return result.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with libcuda.so.1 and the compiled kernels."""
    if shutil.which("clang++-19") is None or platform.machine() != "x86_64":
        pytest.skip("the emulator needs clang++-19 (apt install clang-19) and an x86-64 machine")
    path = tmp_path_factory.mktemp("emulator")
    build(path)
    return path


LONGEST = "delta_nets or (batch_invariant and (matmul_dense or attention))"
"""Rules for the other parts: a random model with delta nets, of which golden.py runs a recorded one, and batch
invariance of dense products of every type and of attention, which takes a minute."""


@pytest.mark.parametrize("part", ["1/8", *(pytest.param(f"{part}/8", marks=pytest.mark.again) for part in range(2, 9))])
def test_conformance_kit(folder: Path, part: str) -> None:
    """Run the kit: with the first part of its cases most rules, with the others those of kernels and the longest."""
    too_large_here = (
        "shipped_model",
        "beside_others",
        "depend_on_other_requests",
        "ten_thousand",
        "nothing_behind",
        "everything_back",
        "512",
        "many",
        "8640",
    )
    by_nvrtc = "test_every_kernel_compiles"  # in test_plugin.py, for every architecture
    rules = f"not (test_kernel_is_offered or {LONGEST})" if part == "1/8" else f"(test_kernel or {LONGEST})"
    chosen = f"TestConformance and {rules}"
    output = run(folder, "--bitnet-part", part, "-k", " and not ".join((chosen, by_nvrtc, *too_large_here)))
    assert " passed" in output


def test_delta_nets_and_rotated_weights(folder: Path) -> None:
    assert " passed" in run(folder, file="golden.py")


def test_two_gpus_that_read_each_other(folder: Path) -> None:
    assert " passed" in run(folder, file="peers.py", SIMT_DEVICES="2")


@pytest.mark.again
def test_dp4a_path_and_the_other_thread_order(folder: Path) -> None:
    output = run(
        folder,
        "-k",
        DP4A,
        SIMT_REVERSE="1",
    )
    assert " passed" in output


def test_norms_joined_for_several_rows_where_warps_go_on_alone(folder: Path) -> None:
    """Run kernels whose blocks have more warps than short rows have columns."""
    output = run(folder, "-k", "TestConformance and test_kernel and norm_matmul and (rows-5 or spoiled)", SIMT_FAR="1")
    assert " passed" in output
