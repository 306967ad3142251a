"""Run-time compilers with NVRTC's functions (NVRTC, hipRTC), and their cache on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bitnet_hal.driver.program_cache import ProgramCache
from bitnet_hal.errors import KernelCompileError


@dataclass(frozen=True, slots=True)
class RuntimeCompiler:
    """A run-time compiler. api: its Python module, whose functions start with `prefix` and return (status, values...).

    code: their name for device code ("CUBIN"). hints: advice by status. reference: converts a program to the argument
    of DestroyProgram.
    """

    backend: str
    api: Any
    prefix: str
    code: str
    hints: Mapping[int, str] = field(default_factory=dict)
    reference: Callable[[Any], Any] = lambda program: program

    def compile(self, name: str, source: str, architecture: str, options: Sequence[bytes]) -> bytes:
        """Compile one translation unit with the kernel `name`. Raises KernelCompileError with the compiler's log."""

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
    """Return the cached program for a key of `parts`, or the result of `make`, which is stored."""
    cache = ProgramCache(backend)
    key = ProgramCache.key(*parts)
    program = cache.load(key)
    if program is None:
        program = make()
        cache.store(key, program)
    return program
