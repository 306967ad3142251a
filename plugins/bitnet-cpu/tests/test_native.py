"""The C++ self-test (tests/native): under sanitizers, and for aarch64 under qemu.

Needs a compiler and CMake; without them, or without qemu and the cross compiler, a test skips with the reason.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from bitnet_cpu.describe import usable_paths

PROJECT = Path(__file__).parents[1]
SANITIZED = "-O0 -g -fno-sanitize-recover=all -fsanitize="


def run(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{command[0]} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


PACKAGES = {"aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu", "qemu-aarch64": "qemu-user", "ninja": "ninja-build"}
"""Debian's packages of programs whose package has another name."""


def needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"it needs {program} (apt install {PACKAGES.get(program, program)})")


def built(folder: Path, target: str, *options: str) -> Path:
    needs("cmake", "ninja", "g++")
    run("cmake", "-S", PROJECT, "-B", folder, "-GNinja", *options)
    run("ninja", "-C", folder, target)
    return folder / target


def test_nothing_leaves_its_buffer_or_is_undefined(tmp_path: Path) -> None:
    flags = f"-DCMAKE_CXX_FLAGS={SANITIZED}address,undefined"
    out = run(built(tmp_path, "selftest", "-DCMAKE_BUILD_TYPE=Debug", flags))
    assert "all equal" in out
    # the loops around the tile instructions, where a CPU has what the rest of that path needs
    assert ("amx emulated" in out) == ("avx512vnni" in usable_paths())


def test_pool_has_no_races(tmp_path: Path) -> None:
    flags = f"-DCMAKE_CXX_FLAGS={SANITIZED}thread"
    assert "all equal" in run(built(tmp_path, "pooltest", "-DCMAKE_BUILD_TYPE=Debug", flags))


@pytest.fixture(scope="module")
def aarch64(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs("aarch64-linux-gnu-g++", "qemu-aarch64")
    return built(
        tmp_path_factory.mktemp("aarch64"),
        "selftest",
        "-DCMAKE_BUILD_TYPE=Debug",
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        "-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++",
        "-DCMAKE_CXX_FLAGS=-static -O1",
    )


@pytest.mark.parametrize(
    ("cpu", "path"), [("cortex-a53", "neon "), ("cortex-a76", "neon-dotprod "), ("max", "neon-i8mm ")]
)
def test_aarch64_equals_portable(aarch64: Path, cpu: str, path: str) -> None:
    out = run("qemu-aarch64", "-cpu", cpu, aarch64)
    assert "all equal" in out
    assert out.startswith(path)  # the best one comes first
