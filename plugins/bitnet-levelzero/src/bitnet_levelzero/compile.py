"""SPIR-V programs of the wheel, compiled by the driver."""

from __future__ import annotations

import zipfile
from functools import cache, partial
from importlib.resources import files

from bitnet_hal.errors import GpuError
from bitnet_hal.plugin import Handle, ProgramCache

from bitnet_levelzero.api import call, listed, load
from bitnet_levelzero.errors import BACKEND, check
from bitnet_levelzero.memory import Context

SPIRV = 0  # ze_module_format_t
NATIVE = 1
ARCHIVE = "programs.zip"


@cache
def archive() -> dict[str, bytes]:
    """Return SPIR-V by program name, from the archive that tools/build_programs.py builds."""
    with (files(__package__) / ARCHIVE).open("rb") as file, zipfile.ZipFile(file) as programs:
        return {name: programs.read(name) for name in programs.namelist()}


class Compiler:
    """The compiler of a device's modules, with a cache of their native code on disk.

    identity: names the device and its driver. With several drivers, loaders up to 1.8 crash when asked for the log of a
    module that was not built, so then no log is requested.
    """

    def __init__(self, context: Context, identity: tuple[str, ...]) -> None:
        self._context = context
        self._identity = identity
        self._logs = len(listed("zeDriverGet")) == 1
        self._cache = ProgramCache(BACKEND)

    def kernel(self, program: str, group: int) -> tuple[Handle, Handle]:
        """Return (module, kernel) of a program, with its group size set.

        Raises KernelCompileError with the compiler's log.
        """
        spirv = archive()[program]
        entry = program.partition(".")[0]
        key = ProgramCache.key(*self._identity, spirv)
        native = partial(self._module, NATIVE, entry="")
        module = self._cache.program(key, native, lambda: self._module(SPIRV, spirv, entry), _binary)
        self._context.own("Module", module)
        kernel = self._context.create("Kernel", module, {"pKernelName": entry})
        call("zeKernelSetGroupSize", kernel, group, 1, 1)
        return module, kernel

    def _module(self, form: int, content: bytes, entry: str) -> Handle:
        api = load()
        module = api.ffi.new("ze_module_handle_t *")
        log = api.ffi.new("ze_module_build_log_handle_t *")
        description = api.make(
            "ze_module_desc_t",
            format=form,
            pBuildFlags="",
            inputSize=len(content),
            pInputModule=api.ffi.from_buffer("uint8_t[]", content),
        )
        log_out = log if self._logs else api.null
        result = api.lib.zeModuleCreate(self._context.handle, self._context.device, description, module, log_out)
        text = _text(log[0]) if self._logs else "the loader returns no log if there are several drivers"
        check(result, "compile", kernel=entry, log=text)
        return module[0]


def _binary(module: Handle) -> bytes | None:
    """Return the native code of a module, None if the driver or an old loader has none; it then compiles each time."""
    try:
        return load().bytes_of("zeModuleGetNativeBinary", "compile", module)
    except (GpuError, AttributeError):
        return None


def _text(log: Handle) -> str:
    """Return the text of a build log and destroy the log."""
    if not log:
        return ""
    text = load().bytes_of("zeModuleBuildLogGetString", "compile", log)
    call("zeModuleBuildLogDestroy", log)
    return text.partition(b"\0")[0].decode(errors="replace")
