"""Builds the stand-in libcuda, and compiles kernels for it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from bitnet_cuda import compile
from bitnet_hal.errors import KernelCompileError

HERE = Path(__file__).parent
_COMPILER = ("clang++-19", "-std=c++17", "-O1", "-mf16c", "-ffp-contract=off", "-fPIC", "-w", f"-I{HERE}")
_HEADER = "cuda_on_cpu.pch"


def build(folder: Path) -> None:
    """Make folder/libcuda.so.1, and the precompiled header that kernels start with (it saves most of their time)."""
    library, header = HERE / "libcuda.cpp", HERE / "cuda_on_cpu.h"
    subprocess.run([*_COMPILER, "-shared", "-o", str(folder / "libcuda.so.1"), str(library), "-ldl"], check=True)
    whole = ("-x", "c++-header", "-fpch-instantiate-templates")
    subprocess.run([*_COMPILER, *whole, "-o", str(folder / _HEADER), str(header)], check=True)


def use() -> None:
    """Make the plugin's compiler this one, in the running process: its folder comes before those of the kernels."""
    compile.FOLDERS = (HERE, *compile.FOLDERS)
    compile.compile_cubin = compile_for_cpu


def compile_for_cpu(name: str, source: str, architecture: str) -> bytes:
    """Takes the place of compile.compile_cubin: the same translation unit as a shared object."""
    built = os.environ["LD_LIBRARY_PATH"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cpp"
        path.write_text(f"{source}\nEMULATE({name})\n")
        output = path.with_suffix(".so")
        command = [*_COMPILER, "-shared", "-include-pch", str(Path(built) / _HEADER), "-o", str(output), str(path)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise KernelCompileError(f"kernel {name} does not compile", kernel=name, log=result.stderr, backend="cuda")
        return output.read_bytes()
