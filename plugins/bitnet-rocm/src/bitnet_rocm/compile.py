"""HIP C++ to code objects with hipRTC, cached on disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bitnet_hal.families.runtime_compiler import RuntimeCompiler, kept
from bitnet_hal.plugin import KernelSpec, Tuning, source_text

from bitnet_rocm.driver import unavailable
from bitnet_rocm.errors import COMPILING
from bitnet_rocm.kernels import KERNELS, PORTABLE

FOLDERS = (KERNELS / "amd", PORTABLE)
"""Where sources and what they include are looked for, in this order."""


def source(spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> str:
    """The translation unit: constants as macros, includes resolved."""
    name = f"{tuning.source(spec.name)}.cu"
    return source_text(FOLDERS, name, {**constants, **tuning.tile, **tuning.private}, backend="rocm")


def options(architecture: str) -> list[bytes]:
    """hipRTC options: no fast-math, so that norms keep their meaning."""
    return [f"--offload-arch={architecture}".encode(), b"-std=c++17", b"-O3"]


def hiprtc() -> Any:
    """hip-python's hiprtc module; BackendUnavailableError if its library is missing."""
    from hip import hiprtc

    module: Any = hiprtc  # most of it has no types
    try:
        module.hiprtcVersion()
    except RuntimeError as exc:
        raise unavailable(f"hipRTC cannot be loaded: {exc}", "Install ROCm's hiprtc and comgr packages") from exc
    return module


def compile_code(name: str, source: str, architecture: str) -> bytes:
    """Compile one translation unit for "gfx1100", say. KernelCompileError carries hipRTC's log."""
    compiler = RuntimeCompiler("rocm", hiprtc(), "hiprtc", "Code", COMPILING, lambda program: program.createRef())
    return compiler.compile(name, source, architecture, options(architecture))


def cached_code(name: str, source: str, architecture: str, runtime: str) -> bytes:
    """`compile_code`, or its stored result. runtime: the version of the HIP runtime, whose compiler this is."""
    parts: list[str | bytes] = [source, architecture, *options(architecture), runtime]
    return kept("rocm", parts, lambda: compile_code(name, source, architecture))
