"""HIP C++ to code objects with hipRTC, cached on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bitnet_core.hal import Tuning
from bitnet_core.hal.program_cache import ProgramCache
from bitnet_core.hal.sources import source_text
from bitnet_core.kernels.spec import KernelSpec

from bitnet_rocm.driver import unavailable
from bitnet_rocm.errors import check_compiled

KERNELS = Path(__file__).parent / "kernels"
PORTABLE = KERNELS / "portable"
if not PORTABLE.is_dir():  # a checkout: builds put them into the wheel, see hatch_build.py
    PORTABLE = KERNELS.parents[3] / "bitnet-cuda/src/bitnet_cuda/kernels/portable"
FOLDERS = (KERNELS / "amd", PORTABLE)
"""Where sources and what they include are looked for, in this order."""


def source(spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> str:
    """The translation unit: constants as macros, includes resolved."""
    name = f"{spec.name}_{tuning.variant}.cu" if tuning.variant else f"{spec.name}.cu"
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
    api = hiprtc()
    created = api.hiprtcCreateProgram(source.encode(), f"{name}.hip".encode(), 0, None, None)
    program = check_compiled(created, name, architecture)[0]
    try:
        flags = options(architecture)
        result = api.hiprtcCompileProgram(program, len(flags), flags)
        log = bytearray(int(check_compiled(api.hiprtcGetProgramLogSize(program), name, architecture)[0]))
        if log:
            api.hiprtcGetProgramLog(program, log)
        check_compiled(result, name, architecture, log.rstrip(b"\0 ").decode(errors="replace"))
        code = bytearray(int(check_compiled(api.hiprtcGetCodeSize(program), name, architecture)[0]))
        check_compiled(api.hiprtcGetCode(program, code), name, architecture)
        return bytes(code)
    finally:
        api.hiprtcDestroyProgram(program.createRef())


def cached_code(name: str, source: str, architecture: str, runtime: str) -> bytes:
    """`compile_code`, or its stored result. runtime: the version of the HIP runtime, whose compiler this is."""
    key = ProgramCache.key(source, architecture, *options(architecture), runtime)
    cache = ProgramCache("rocm")
    code = cache.load(key)
    if code is None:
        code = compile_code(name, source, architecture)
        cache.store(key, code)
    return code
