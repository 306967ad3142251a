"""Compilation of CUDA C++ to cubins with NVRTC, with a cache on disk."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bitnet_hal.families.runtime_compiler import RuntimeCompiler, kept
from bitnet_hal.plugin import KernelSpec, Tuning, source_text

from bitnet_cuda.driver import unavailable

FOLDERS = tuple(Path(__file__).parent / "kernels" / name for name in ("nvidia", "portable"))
"""The folders of kernel sources, in the order of the search."""


def source(spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> str:
    """Return the translation unit of a kernel, with its constants as macros and its includes inserted."""
    macros = {**constants, **tuning.tile, **tuning.private}
    return source_text(FOLDERS, f"{tuning.source(spec.name)}.cu", macros, backend="cuda")


def options(architecture: str) -> list[bytes]:
    """Return the options of NVRTC. There is no fast-math: norms need exact division and square roots."""
    return [f"--gpu-architecture={architecture}".encode(), b"--std=c++17", b"--fmad=true", b"-default-device"]


def nvrtc() -> Any:
    """Return the nvrtc module of cuda.bindings. Raises BackendUnavailableError if its library does not load."""
    from cuda.bindings import nvrtc as module  # type: ignore[import-untyped]  # no types

    try:
        module.nvrtcVersion()
    except RuntimeError as exc:
        raise unavailable("the compiler NVRTC is not installed", "pip install 'nvidia-cuda-nvrtc>=13,<14'") from exc
    return module


def compile_cubin(name: str, source: str, architecture: str) -> bytes:
    """Return the cubin of a translation unit. architecture: such as "sm_90".

    Raises KernelCompileError with NVRTC's log.
    """
    compiler = RuntimeCompiler("cuda", nvrtc(), "nvrtc", "CUBIN")
    return compiler.compile(name, source, architecture, options(architecture))


def cached_cubin(name: str, source: str, architecture: str) -> bytes:
    """Return the cubin of a translation unit from the cache on disk; compile and store it if it is missing."""
    parts: list[str | bytes] = [source, architecture, *options(architecture), _nvrtc_version()]
    return kept("cuda", parts, lambda: compile_cubin(name, source, architecture))


@cache
def _nvrtc_version() -> str:
    """Return the version of the installed NVRTC.

    The metadata of its wheel comes first, because loading the library takes half a second.
    """
    try:
        return version("nvidia-cuda-nvrtc")
    except PackageNotFoundError:
        return str(nvrtc().nvrtcVersion()[1:])
