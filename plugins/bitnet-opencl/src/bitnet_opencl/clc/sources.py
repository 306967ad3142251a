"""Assembling programs: a kernel's arguments come from the catalogue, the rest from the files of this folder."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from bitnet_core.hal.device import Tuning
from bitnet_core.hal.sources import source_text
from bitnet_core.kernels.spec import KernelSpec

_FOLDER = Path(__file__).parent


class Dialect(Enum):
    """Folders in which files are looked for, in this order."""

    PORTABLE = (_FOLDER / "kernels",)
    NVIDIA = (_FOLDER / "nvidia", _FOLDER / "kernels")

    def text(self, name: str, macros: Mapping[str, int]) -> str:
        """A file behind the definitions of these macros, with what it includes put in."""
        return source_text(self.value, name, macros, backend="opencl")


def entry_name(spec: KernelSpec, tuning: Tuning) -> str:
    """Of the source file and its kernel."""
    return f"{spec.name}_{tuning.variant}" if tuning.variant else spec.name


def program_source(spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning, dialect: Dialect) -> str:
    """One kernel, complete: buffers, then one struct of their offsets and the parameters.

    A launch takes NVIDIA's driver about 0.1 us for each argument, and a token takes 150 launches.
    """
    fields = [("ulong", f"{name}_offset") for name in _names(spec, tuning)] + _parameters(spec)
    members = " ".join(f"{kind} {name};" for kind, name in fields)
    values = " ".join(f"const {kind} {name} = launch.{name};" for kind, name in fields)
    arguments = [*_buffers(spec, tuning), "const launch_arguments launch"]
    struct = f"typedef struct {{ {members} }} launch_arguments;\n"
    return struct + _with_arguments(spec, constants, tuning, dialect, arguments, values)


def program_source_of_pointers(spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning, dialect: Dialect) -> str:
    """The same for an API whose pointers may point into a buffer: pointers, then the parameters one by one."""
    values = " ".join(f"const ulong {name}_offset = 0;" for name in _names(spec, tuning))
    arguments = _buffers(spec, tuning) + [f"const {kind} {name}" for kind, name in _parameters(spec)]
    return _with_arguments(spec, constants, tuning, dialect, arguments, values)


def _with_arguments(
    spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning, dialect: Dialect, arguments: list[str], values: str
) -> str:
    none = "" if tuning.workspace else " __global uchar *workspace_buffer = 0; const ulong workspace_offset = 0;"
    prelude = dialect.text("prelude.clh", {**constants, **tuning.tile, **tuning.private})
    kernel = dialect.text(f"{entry_name(spec, tuning)}.cl", {})
    return f"#define ARGUMENTS {', '.join(arguments)}\n#define PARAMETERS {values}{none}\n{prelude}{kernel}"


def _names(spec: KernelSpec, tuning: Tuning) -> list[str]:
    return [binding.name for binding in spec.bindings] + (["workspace"] if tuning.workspace else [])


def _parameters(spec: KernelSpec) -> list[tuple[str, str]]:
    return [("uint" if param.kind == "u32" else "float", param.name) for param in spec.params]


def _buffers(spec: KernelSpec, tuning: Tuning) -> list[str]:
    read_only = {binding.name for binding in spec.bindings if binding.access == "r"}
    return [f"__global {'const ' if name in read_only else ''}uchar *{name}_buffer" for name in _names(spec, tuning)]
