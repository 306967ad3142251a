"""CUDA C++ to cubin with NVRTC, cached on disk."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bitnet_hal.families.runtime_compiler import RuntimeCompiler, kept
from bitnet_hal.plugin import KernelSpec, Tuning, source_text

from bitnet_cuda.driver import unavailable

FOLDERS = tuple(Path(__file__).parent / "kernels" / name for name in ("nvidia", "portable"))  # in this order


def source(spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> str:
    """The translation unit: constants as macros, includes resolved."""
    macros = {**constants, **tuning.tile, **tuning.private}
    return source_text(FOLDERS, f"{tuning.source(spec.name)}.cu", macros, backend="cuda")


def options(architecture: str) -> list[bytes]:
    """NVRTC options: no fast-math, so that norms keep their meaning."""
    return [f"--gpu-architecture={architecture}".encode(), b"--std=c++17", b"--fmad=true", b"-default-device"]


def nvrtc() -> Any:
    """cuda.bindings' nvrtc module, its library loaded; BackendUnavailableError if there is none."""
    from cuda.bindings import nvrtc as module  # type: ignore[import-untyped]  # no types

    try:
        module.nvrtcVersion()
    except RuntimeError as exc:
        raise unavailable("the compiler NVRTC is not installed", "pip install 'nvidia-cuda-nvrtc>=13,<14'") from exc
    return module


def compile_cubin(name: str, source: str, architecture: str) -> bytes:
    """Compile one translation unit for "sm_90", say. KernelCompileError carries NVRTC's log."""
    compiler = RuntimeCompiler("cuda", nvrtc(), "nvrtc", "CUBIN")
    return compiler.compile(name, source, architecture, options(architecture))


def cached_cubin(name: str, source: str, architecture: str) -> bytes:
    """`compile_cubin`, or its stored result."""
    parts: list[str | bytes] = [source, architecture, *options(architecture), _nvrtc_version()]
    return kept("cuda", parts, lambda: compile_cubin(name, source, architecture))


@cache
def _nvrtc_version() -> str:
    """The installed NVRTC's version, from its wheel where possible: loading the library costs half a second."""
    try:
        return version("nvidia-cuda-nvrtc")
    except PackageNotFoundError:
        return str(nvrtc().nvrtcVersion()[1:])
