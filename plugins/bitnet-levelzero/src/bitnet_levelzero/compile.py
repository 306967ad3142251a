"""Programs of the wheel, and what the driver's compiler makes of them."""

from __future__ import annotations

import ctypes
import zipfile
from ctypes import byref, c_size_t, c_void_p
from functools import cache, partial
from importlib.resources import files

from bitnet_core.hal.program_cache import ProgramCache

from bitnet_levelzero.api import KernelDesc, ModuleDesc, call, created, handles, has, load
from bitnet_levelzero.errors import BACKEND, check
from bitnet_levelzero.memory import Context

SPIRV, NATIVE = 0, 1
ARCHIVE = "programs.zip"


@cache
def archive() -> dict[str, bytes]:
    """SPIR-V by program name; made by tools/build_programs.py."""
    with (files(__package__) / ARCHIVE).open("rb") as file, zipfile.ZipFile(file) as programs:
        return {name: programs.read(name) for name in programs.namelist()}


class Compiler:
    """Modules of one device; their native code is kept on disk.

    identity: of the device and its driver. With several drivers the loader stands between, and crashes over the log of
    a module that was not built (1.8 and before), so nobody asks for it.
    """

    def __init__(self, context: Context, identity: tuple[str, ...]) -> None:
        self._context, self._identity, self._logs = context, identity, len(handles("zeDriverGet")) == 1
        self._cache = ProgramCache(BACKEND)

    def kernel(self, program: str, group: int) -> tuple[c_void_p, c_void_p]:
        """(module, kernel) of a program, with its group size set; KernelCompileError with the compiler's log."""
        spirv, entry = archive()[program], program.partition(".")[0]
        key = ProgramCache.key(*self._identity, spirv)
        native = partial(self._module, NATIVE, entry="")
        module = self._cache.program(key, native, lambda: self._module(SPIRV, spirv, entry), _binary)
        kernel = created("zeKernelCreate", module, byref(KernelDesc(pKernelName=entry.encode())))
        call("zeKernelSetGroupSize", kernel, group, 1, 1)
        return module, kernel

    def _module(self, form: int, content: bytes, entry: str) -> c_void_p:
        module, log = c_void_p(), c_void_p()
        desc = ModuleDesc(format=form, inputSize=len(content), pInputModule=content, pBuildFlags=b"")
        where, out = (self._context.handle, self._context.device), byref(log) if self._logs else None
        result = load().zeModuleCreate(*where, byref(desc), byref(module), out)
        text = _text(log) if self._logs else "the loader gives no text where there are several drivers"
        check(result, "compile", kernel=entry, log=text)
        return module


def _binary(module: c_void_p) -> bytes | None:
    """None where the driver gives no binaries: it compiles each time."""
    size = c_size_t()
    if not has("zeModuleGetNativeBinary") or load().zeModuleGetNativeBinary(module, byref(size), None):
        return None
    binary = ctypes.create_string_buffer(size.value)
    return binary.raw[: size.value] if load().zeModuleGetNativeBinary(module, byref(size), binary) == 0 else None


def _text(log: c_void_p) -> str:
    """Of a build log, which is freed."""
    if not log:
        return ""
    size = c_size_t()
    call("zeModuleBuildLogGetString", log, byref(size), None)
    text = ctypes.create_string_buffer(max(size.value, 1))
    call("zeModuleBuildLogGetString", log, byref(size), text)
    call("zeModuleBuildLogDestroy", log)
    return text.value.decode(errors="replace")
