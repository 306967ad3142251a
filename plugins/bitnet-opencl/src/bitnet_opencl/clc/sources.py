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


def program_source(
    spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning, dialect: Dialect, *, pointers: bool = False
) -> str:
    """One kernel, complete: buffers, then one struct of their offsets and the parameters.

    A launch takes NVIDIA's driver about 0.1 us for each argument, and a token takes 150 launches. pointers: for an API
    whose pointers may point into a buffer: pointers, then the parameters one by one.
    """
    names = [binding.name for binding in spec.bindings] + (["workspace"] if tuning.workspace else [])
    const = {binding.name: "const " for binding in spec.bindings if binding.access == "r"}
    buffers = [f"__global {const.get(name, '')}uchar *{name}_buffer" for name in names]
    offsets = [("ulong", f"{name}_offset") for name in names]
    params = [("uint" if param.kind == "u32" else "float", param.name) for param in spec.params]
    if pointers:
        struct, arguments = "", buffers + [f"const {kind} {name}" for kind, name in params]
        values = [f"const {kind} {name} = 0;" for kind, name in offsets]
    else:
        fields, arguments = offsets + params, [*buffers, "const launch_arguments launch"]
        struct = f"typedef struct {{ {' '.join(f'{kind} {name};' for kind, name in fields)} }} launch_arguments;\n"
        values = [f"const {kind} {name} = launch.{name};" for kind, name in fields]
    if not tuning.workspace:
        values.append("__global uchar *workspace_buffer = 0; const ulong workspace_offset = 0;")
    prelude = dialect.text("prelude.clh", {**constants, **tuning.tile, **tuning.private})
    kernel = dialect.text(f"{tuning.source(spec.name)}.cl", {})
    defined = f"#define ARGUMENTS {', '.join(arguments)}\n#define PARAMETERS {' '.join(values)}\n"
    return struct + defined + prelude + kernel
