"""The build backend, over a fake scikit-build-core that records the compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BACKEND = Path(__file__).parents[1] / "backend"
STAND_IN = """
import os

def __getattr__(name):
    return lambda *settings: print(name, os.environ["CXX"])
"""
CODE = """
import sysconfig
sysconfig.get_path = lambda name: {headers!r}
import compiler_first
compiler_first.{hook}()
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="macOS and Windows find compilers in other ways")


def run(folder: Path, hook: str, *programs: str, headers: bool = True, **environment: str) -> str:
    """Return the message of a hook of the backend on a machine that has only these programs."""
    packages, path, include = (folder / name for name in ("packages", "bin", "include"))
    for made in (packages / "scikit_build_core", path, include):
        made.mkdir(parents=True)
    (packages / "scikit_build_core" / "__init__.py").touch()
    (packages / "scikit_build_core" / "build.py").write_text(STAND_IN)
    for name in programs:
        (path / name).touch(mode=0o755)
    if headers:
        (include / "Python.h").touch()
    variables = {"PATH": str(path), "PYTHONPATH": f"{packages}:{BACKEND}", **environment}
    command = [sys.executable, "-c", CODE.format(headers=str(include), hook=hook)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == (1 if done.stderr else 0)
    return (done.stdout + done.stderr).strip()


@pytest.mark.parametrize("hook", ["get_requires_for_build_wheel", "build_wheel", "build_editable"])
def test_without_a_compiler_one_line_says_what_to_install(tmp_path: Path, hook: str) -> None:
    said = run(tmp_path, hook)
    assert said.startswith("bitnet-cpu needs a C++ compiler: apt install g++ python3-dev (Debian, Ubuntu), dnf ")
    assert "\n" not in said


@pytest.mark.parametrize("hook", ["get_requires_for_build_wheel", "build_wheel"])
def test_clang_alone_is_taken(tmp_path: Path, hook: str) -> None:
    assert run(tmp_path, hook, "clang++") == f"{hook} clang++"


def test_a_compiler_that_is_asked_for_is_taken_or_named(tmp_path: Path) -> None:
    assert run(tmp_path / "1", "build_wheel", "mine", "g++", CXX="mine -pipe") == "build_wheel mine -pipe"
    assert "CXX is 'mine', which is not on the PATH" in run(tmp_path / "2", "build_wheel", "g++", CXX="mine")


def test_missing_headers_have_a_package_of_their_own(tmp_path: Path) -> None:
    said = run(tmp_path, "build_wheel", "g++", headers=False)
    assert said.startswith("bitnet-cpu needs Python's headers: apt install python3-dev (Debian, Ubuntu)")


def test_an_sdist_needs_no_compiler(tmp_path: Path) -> None:
    assert run(tmp_path, "build_sdist", CXX="") == "build_sdist"
