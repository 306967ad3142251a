"""scikit-build-core's build backend (PEP 517, PEP 660), with a clear error if there is no C++ compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from scikit_build_core import build as scikit

OTHERS = ("g++", "clang++", "c++")
"""The compilers to try if the compiler of this Python's build is not installed."""
COMMANDS = "apt install {apt} (Debian, Ubuntu), dnf install {dnf} (Fedora), xcode-select --install (macOS)"
P = ParamSpec("P")
R = TypeVar("R")


def compiler() -> str:
    """Name the C++ compiler: CXX, this Python's own, or another that is on the PATH; "" if there is none."""
    given = os.environ.get("CXX") or str(sysconfig.get_config_var("CXX") or "")
    if given and shutil.which(given.split()[0]):
        return given
    return "" if os.environ.get("CXX") else next((name for name in OTHERS if shutil.which(name)), "")


def absent() -> str:
    """Return the missing parts of a build and the commands that install them, "" if there are none."""
    if sys.platform == "darwin" and subprocess.run(["xcode-select", "-p"], capture_output=True, check=False).returncode:
        return f"a C++ compiler: {COMMANDS.format(apt='g++', dnf='gcc-c++')}"
    if not compiler():
        named = f"; CXX is {os.environ['CXX']!r}, which is not on the PATH" if os.environ.get("CXX") else ""
        return f"a C++ compiler{named}: {COMMANDS.format(apt='g++ python3-dev', dnf='gcc-c++ python3-devel')}"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return f"Python's headers: {COMMANDS.format(apt='python3-dev', dnf='python3-devel')}"
    return ""


def with_compiler(hook: Callable[P, R]) -> Callable[P, R]:
    """Choose the compiler before a hook runs, or end the build with one line. Each hook runs in its own process."""

    @wraps(hook)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if sys.platform != "win32":  # where CMake finds Visual Studio, which is not on the PATH
            if lacking := absent():
                sys.exit(f"bitnet-cpu needs {lacking}. Without bitnet-cpu, bitnet-core runs on its numpy device.")
            os.environ["CXX"] = compiler()
        return hook(*args, **kwargs)

    return run


get_requires_for_build_sdist = scikit.get_requires_for_build_sdist
build_sdist = scikit.build_sdist
get_requires_for_build_wheel = with_compiler(scikit.get_requires_for_build_wheel)  # installers call it first
prepare_metadata_for_build_wheel = scikit.prepare_metadata_for_build_wheel
build_wheel = with_compiler(scikit.build_wheel)
get_requires_for_build_editable = with_compiler(scikit.get_requires_for_build_editable)
prepare_metadata_for_build_editable = scikit.prepare_metadata_for_build_editable
build_editable = with_compiler(scikit.build_editable)
