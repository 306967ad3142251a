"""Builds the stand-in libcuda, and compiles kernels for it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from bitnet_cuda import compile
from bitnet_hal.errors import KernelCompileError

HERE = Path(__file__).parent
_FLAGS = ["-std=c++17", "-O1", "-mf16c", "-ffp-contract=off", "-fPIC", "-fno-gnu-unique", "-w"]


def build(folder: Path) -> None:
    """Make folder/libcuda.so.1, and the precompiled header that kernels start with (it saves most of their time)."""
    library, header = HERE / "libcuda.cpp", HERE / "cuda_on_cpu.h"
    command = ["g++", *_FLAGS, "-shared", f"-I{HERE}", "-o", str(folder / "libcuda.so.1"), str(library), "-ldl"]
    subprocess.run(command, check=True)
    command = ["g++", *_FLAGS, f"-I{HERE}", "-x", "c++-header", "-o", str(folder / "cuda_on_cpu.h.gch"), str(header)]
    subprocess.run(command, check=True)


def use() -> None:
    """Make the plugin's compiler this one, in the running process: its folder comes before those of the kernels."""
    compile.FOLDERS = (HERE, *compile.FOLDERS)
    compile.compile_cubin = compile_for_cpu


def compile_for_cpu(name: str, source: str, architecture: str) -> bytes:
    """Takes the place of compile.compile_cubin: the same translation unit as a shared object."""
    built = os.environ["LD_LIBRARY_PATH"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cpp"
        path.write_text(f'#include "cuda_on_cpu.h"\n{source}\nEMULATE({name})\n')
        output = path.with_suffix(".so")
        command = ["g++", *_FLAGS, "-shared", f"-I{built}", f"-I{HERE}", "-o", str(output), str(path)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise KernelCompileError(f"kernel {name} does not compile", kernel=name, log=result.stderr, backend="cuda")
        return output.read_bytes()
