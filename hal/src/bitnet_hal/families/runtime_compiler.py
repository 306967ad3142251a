"""Compilers in a library with NVRTC's functions, as hipRTC's are: sources to device code, kept on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bitnet_hal.driver.program_cache import ProgramCache
from bitnet_hal.errors import KernelCompileError


@dataclass(frozen=True, slots=True)
class RuntimeCompiler:
    """api: the library's Python module, whose functions start with `prefix`, take bytes and give (status, values...).

    code: what they call the device code. hints: what to do, by status. reference: what destroys a program.
    """

    backend: str
    api: Any
    prefix: str
    code: str
    hints: Mapping[int, str] = field(default_factory=dict)
    reference: Callable[[Any], Any] = lambda program: program

    def compile(self, name: str, source: str, architecture: str, options: Sequence[bytes]) -> bytes:
        """One translation unit with the kernel `name`. KernelCompileError carries the compiler's log."""

        def call(function: str, *arguments: Any) -> Any:
            status, *values = getattr(self.api, self.prefix + function)(*arguments)
            if int(status):
                raise self._failure(status, name, architecture, "")
            return values[0] if values else None

        program = call("CreateProgram", source.encode(), f"{name}.cu".encode(), 0, None, None)
        try:
            status = getattr(self.api, f"{self.prefix}CompileProgram")(program, len(options), list(options))[0]
            if int(status):
                log = bytearray(int(call("GetProgramLogSize", program)))
                call("GetProgramLog", program, log)
                raise self._failure(status, name, architecture, log.rstrip(b"\0 ").decode(errors="replace"))
            code = bytearray(int(call(f"Get{self.code}Size", program)))
            call(f"Get{self.code}", program, code)
            return bytes(code)
        finally:
            getattr(self.api, f"{self.prefix}DestroyProgram")(self.reference(program))

    def _failure(self, status: Any, name: str, architecture: str, log: str) -> KernelCompileError:
        return KernelCompileError(
            f"kernel {name} does not compile for {architecture}",
            backend=self.backend,
            kernel=name,
            log=log,
            code=f"{getattr(status, 'name', self.prefix)} ({int(status)})",
            hint=self.hints.get(int(status), ""),
        )


def kept(backend: str, parts: Sequence[str | bytes], make: Callable[[], bytes]) -> bytes:
    """The program that all of `parts` stand for, from the disk or made now."""
    cache, key = ProgramCache(backend), ProgramCache.key(*parts)
    program = cache.load(key)
    if program is None:
        program = make()
        cache.store(key, program)
    return program
