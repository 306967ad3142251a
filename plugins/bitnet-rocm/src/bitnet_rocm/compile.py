"""Compilation of HIP C++ to code objects with hipRTC, cached on disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bitnet_hal.families.runtime_compiler import RuntimeCompiler, kept
from bitnet_hal.plugin import KernelSpec, Tuning, source_text

from bitnet_rocm.driver import unavailable
from bitnet_rocm.errors import COMPILING
from bitnet_rocm.kernels import KERNELS, PORTABLE

FOLDERS = (KERNELS / "amd", PORTABLE)
"""Folders that are searched for sources and includes, in this order."""


def source(spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> str:
    """Return the translation unit of a kernel, with its constants as macros and its includes inserted."""
    name = f"{tuning.source(spec.name)}.cu"
    return source_text(FOLDERS, name, {**constants, **tuning.tile, **tuning.private}, backend="rocm")


def options(architecture: str, wave: int = 0) -> list[bytes]:
    """Return the options of hipRTC. There is no fast-math: norms must detect NaN and Inf.

    wave: the threads of a wave; 0 for the compiler's own choice.
    """
    width = [f"-mwavefrontsize{wave}".encode()] if wave else []
    return [f"--offload-arch={architecture}".encode(), b"-std=c++17", b"-O3", *width]


def hiprtc() -> Any:
    """Return hip-python's hiprtc module. Raises BackendUnavailableError if its library is missing."""
    from hip import hiprtc

    module: Any = hiprtc  # most of it has no types
    try:
        module.hiprtcVersion()
    except RuntimeError as exc:
        raise unavailable(f"hipRTC cannot be loaded: {exc}", "Install ROCm's hiprtc and comgr packages") from exc
    return module


def compile_code(name: str, source: str, architecture: str, wave: int = 0) -> bytes:
    """Compile a translation unit for an architecture such as "gfx1100". Raises KernelCompileError with hipRTC's log."""
    compiler = RuntimeCompiler("rocm", hiprtc(), "hiprtc", "Code", COMPILING, lambda program: program.createRef())
    return compiler.compile(name, source, architecture, options(architecture, wave))


def cached_code(name: str, source: str, architecture: str, runtime: str, wave: int = 0) -> bytes:
    """Return the code object from the cache on disk; compile and store it if it is missing.

    runtime: the version of the HIP runtime.
    """
    parts: list[str | bytes] = [source, architecture, *options(architecture, wave), runtime]
    return kept("rocm", parts, lambda: compile_code(name, source, architecture, wave))
