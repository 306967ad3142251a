"""Programs of the wheel, and what the driver's compiler makes of them."""

from __future__ import annotations

import zipfile
from functools import cache, partial
from importlib.resources import files

from bitnet_hal.errors import GpuError
from bitnet_hal.plugin import Handle, ProgramCache

from bitnet_levelzero.api import call, listed, load
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
        self._context, self._identity, self._logs = context, identity, len(listed("zeDriverGet")) == 1
        self._cache = ProgramCache(BACKEND)

    def kernel(self, program: str, group: int) -> tuple[Handle, Handle]:
        """(module, kernel) of a program, with its group size set; KernelCompileError with the compiler's log."""
        spirv, entry = archive()[program], program.partition(".")[0]
        key = ProgramCache.key(*self._identity, spirv)
        native = partial(self._module, NATIVE, entry="")
        module = self._cache.program(key, native, lambda: self._module(SPIRV, spirv, entry), _binary)
        self._context.own("Module", module)
        kernel = self._context.create("Kernel", module, {"pKernelName": entry})
        call("zeKernelSetGroupSize", kernel, group, 1, 1)
        return module, kernel

    def _module(self, form: int, content: bytes, entry: str) -> Handle:
        api = load()
        module, log = api.ffi.new("ze_module_handle_t *"), api.ffi.new("ze_module_build_log_handle_t *")
        code = {"inputSize": len(content), "pInputModule": api.ffi.from_buffer("uint8_t[]", content)}
        desc, out = api.make("ze_module_desc_t", format=form, pBuildFlags="", **code), log if self._logs else api.null
        result = api.lib.zeModuleCreate(self._context.handle, self._context.device, desc, module, out)
        text = _text(log[0]) if self._logs else "the loader gives no text where there are several drivers"
        check(result, "compile", kernel=entry, log=text)
        return module[0]


def _binary(module: Handle) -> bytes | None:
    """None where the driver, or an old loader, gives no binaries: it compiles each time."""
    try:
        return load().bytes_of("zeModuleGetNativeBinary", "compile", module)
    except (GpuError, AttributeError):
        return None


def _text(log: Handle) -> str:
    """Of a build log, which is freed."""
    if not log:
        return ""
    text = load().bytes_of("zeModuleBuildLogGetString", "compile", log)
    call("zeModuleBuildLogDestroy", log)
    return text.partition(b"\0")[0].decode(errors="replace")
