"""CUDA C++ to cubin with NVRTC, cached on disk."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs
from bitnet_core.errors import BackendUnavailableError, KernelCompileError, UnsupportedError
from bitnet_core.kernels.spec import KernelSpec

logger = logging.getLogger(__name__)

KERNELS = Path(__file__).parent / "kernels"
VARIANTS = ("FEW", "BATCH", "MMA", "WGMMA", "HEADS")
"""Tuning constants that choose another source file for a kernel, by their name in lower case."""


def source_file(spec: KernelSpec, constants: Mapping[str, int]) -> Path:
    """The source of a kernel; UnsupportedError if there is none."""
    stem = spec.name
    stem += next((f"_{variant.lower()}" for variant in VARIANTS if constants.get(variant)), "")
    path = KERNELS / f"{stem}.cu"
    if not path.exists():
        raise UnsupportedError(f"there is no kernel {spec.name}", backend="cuda", operation="compile")
    return path


def source_text(path: Path, constants: Mapping[str, int]) -> str:
    """The translation unit: constants as macros, includes resolved, so that NVRTC needs no file system."""
    defines = "".join(f"#define {name} {value}\n" for name, value in sorted(constants.items()))
    return defines + _with_includes(path)


def _with_includes(path: Path) -> str:
    lines = path.read_text().splitlines()
    return "".join(
        _with_includes(KERNELS / line.split('"')[1]) if line.startswith('#include "') else line + "\n" for line in lines
    )


def options(architecture: str) -> list[bytes]:
    """NVRTC options: no fast-math, so that norms keep their meaning."""
    return [f"--gpu-architecture={architecture}".encode(), b"--std=c++17", b"--fmad=true", b"-default-device"]


def nvrtc() -> Any:
    """cuda.bindings' nvrtc module, its library loaded; BackendUnavailableError if there is none."""
    from cuda.bindings import nvrtc as module  # type: ignore[import-untyped]  # no types

    try:
        module.nvrtcVersion()
    except RuntimeError as exc:
        raise BackendUnavailableError(
            "NVRTC, the run-time compiler, is not installed",
            backend="cuda",
            operation="load",
            hint="pip install 'nvidia-cuda-nvrtc>=13,<14'",
        ) from exc
    return module


def compile_cubin(name: str, source: str, architecture: str) -> bytes:
    """Compile one translation unit for "sm_90", say. KernelCompileError carries NVRTC's log."""
    api = nvrtc()
    status, program = api.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), 0, None, None)
    flags = options(architecture)
    (status,) = api.nvrtcCompileProgram(program, len(flags), flags)
    try:
        if int(status) != 0:
            _, size = api.nvrtcGetProgramLogSize(program)
            log = b" " * size
            api.nvrtcGetProgramLog(program, log)
            text = log.rstrip(b"\0 ").decode(errors="replace")
            raise KernelCompileError(
                f"kernel {name} does not compile for {architecture}",
                kernel=name,
                log=text,
                backend="cuda",
                code=f"NVRTC {int(status)}",
            )
        _, size = api.nvrtcGetCUBINSize(program)
        cubin: bytes = b"\0" * size
        api.nvrtcGetCUBIN(program, cubin)
        return cubin
    finally:
        api.nvrtcDestroyProgram(program)


def cached_cubin(name: str, source: str, architecture: str) -> bytes:
    """`compile_cubin`, or its stored result. The key covers source, architecture, options and NVRTC's version; a
    damaged entry is compiled again."""
    version = _nvrtc_version()
    key = hashlib.sha256(repr((source, architecture, options(architecture), version)).encode()).hexdigest()
    path = Path(platformdirs.user_cache_dir("bitnet")) / "cuda" / f"{name}-{key[:32]}.cubin"
    try:
        data = path.read_bytes()
        if hashlib.sha256(data[32:]).digest() == data[:32]:
            return data[32:]
        logger.warning("the cached kernel %s is damaged and will be compiled again", path)
    except OSError:
        pass
    cubin = compile_cubin(name, source, architecture)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(hashlib.sha256(cubin).digest() + cubin)
        temporary.replace(path)
    except OSError as exc:
        logger.info("kernel %s was not stored: %s", name, exc)
        temporary.unlink(missing_ok=True)
    return cubin


def _nvrtc_version() -> str:
    """The installed NVRTC's version, from its wheel where possible: loading the library costs half a second."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("nvidia-cuda-nvrtc")
    except PackageNotFoundError:
        return str(nvrtc().nvrtcVersion()[1:])
