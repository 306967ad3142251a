"""Assembling programs: a kernel's arguments come from the catalogue, the rest from the files of this folder."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cache
from importlib.resources import files

from bitnet_core.hal.device import Tuning
from bitnet_core.kernels.spec import KernelSpec

INCLUDE = '#include "'


class Dialect(Enum):
    """Folders in which files are looked for, in this order."""

    PORTABLE = ("kernels",)
    NVIDIA = ("nvidia", "kernels")


def entry_name(spec: KernelSpec, tuning: Tuning) -> str:
    """Of the source file and its kernel."""
    return f"{spec.name}_{tuning.variant}" if tuning.variant else spec.name


def definitions(constants: Mapping[str, int], tuning: Tuning) -> list[str]:
    """Compiler options for all constants."""
    values = {**constants, **tuning.tile, **tuning.private}
    return [f"-D{name}={value}" for name, value in sorted(values.items())]


def program_source(spec: KernelSpec, tuning: Tuning, dialect: Dialect) -> str:
    """One kernel, complete: buffers, then one struct of their offsets and the parameters.

    A launch takes NVIDIA's driver about 0.1 us for each argument, and a token takes 150 launches.
    """
    fields = [("ulong", f"{name}_offset") for name in _names(spec, tuning)] + _parameters(spec)
    members = " ".join(f"{kind} {name};" for kind, name in fields)
    values = " ".join(f"const {kind} {name} = launch.{name};" for kind, name in fields)
    return (
        f"typedef struct {{ {members} }} launch_arguments;\n"
        f"#define ARGUMENTS {', '.join(_buffers(spec, tuning))}, const launch_arguments launch\n"
        f"#define PARAMETERS {values}{_no_workspace(tuning)}\n" + source_text(entry_name(spec, tuning), dialect)
    )


def program_source_of_pointers(spec: KernelSpec, tuning: Tuning, dialect: Dialect) -> str:
    """The same for an API whose pointers may point into a buffer: pointers, then the parameters one by one."""
    values = " ".join(f"const ulong {name}_offset = 0;" for name in _names(spec, tuning))
    parameters = [f"const {kind} {name}" for kind, name in _parameters(spec)]
    return (
        f"#define ARGUMENTS {', '.join(_buffers(spec, tuning) + parameters)}\n"
        f"#define PARAMETERS {values}{_no_workspace(tuning)}\n" + source_text(entry_name(spec, tuning), dialect)
    )


def _names(spec: KernelSpec, tuning: Tuning) -> list[str]:
    return [binding.name for binding in spec.bindings] + (["workspace"] if tuning.workspace else [])


def _parameters(spec: KernelSpec) -> list[tuple[str, str]]:
    return [("uint" if param.kind == "u32" else "float", param.name) for param in spec.params]


def _buffers(spec: KernelSpec, tuning: Tuning) -> list[str]:
    read_only = {binding.name for binding in spec.bindings if binding.access == "r"}
    return [f"__global {'const ' if name in read_only else ''}uchar *{name}_buffer" for name in _names(spec, tuning)]


def _no_workspace(tuning: Tuning) -> str:
    return "" if tuning.workspace else " __global uchar *workspace_buffer = 0; const ulong workspace_offset = 0;"


@cache
def source_text(entry: str, dialect: Dialect) -> str:
    """The prelude and one kernel file, with what they include put in."""
    return _expanded("prelude.clh", dialect) + _expanded(f"{entry}.cl", dialect)


def _expanded(name: str, dialect: Dialect) -> str:
    found = (files(__package__) / folder / name for folder in dialect.value)
    file = next(file for file in found if file.is_file())
    return "".join(
        _expanded(line[len(INCLUDE) :].rstrip('"\n'), dialect) if line.startswith(INCLUDE) else line
        for line in file.read_text(encoding="utf-8").splitlines(keepends=True)
    )
