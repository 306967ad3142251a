"""Builds the stand-in HIP runtime."""

from __future__ import annotations

import subprocess
from pathlib import Path

HERE = Path(__file__).parent
FIBERS = HERE.parents[2] / "bitnet-cuda/tests/emulator"
"""simt.h is there."""
KERNELS = ["-std=c++17", "-O1", "-mavx2", "-mf16c", "-ffp-contract=off", "-fPIC", "-w", f"-I{HERE}", f"-I{FIBERS}"]


def build(folder: Path) -> dict[str, str]:
    """Make folder/lib with the runtime's two libraries; the environment of a process that is to find them."""
    library, header = folder / "lib", folder / "hip_on_cpu.pch"
    library.mkdir()
    source, target = HERE / "libamdhip64.cpp", library / "libamdhip64.so"
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-Wall", "-Wno-unused-result"]
    subprocess.run(["clang++-19", *flags, "-o", str(target), str(source), "-ldl"], check=True)
    (library / "libhiprtc.so").symlink_to(target.name)
    command = ["clang++-19", *KERNELS, "-x", "c++-header", "-fpch-instantiate-templates", "-o", str(header)]
    subprocess.run([*command, str(HERE / "hip_on_cpu.h")], check=True)
    return {
        "ROCM_PATH": str(folder),
        "HIP_ON_CPU_FLAGS": " ".join([*KERNELS, "-include-pch", str(header)]),
        "HIP_ON_CPU_KEPT": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
