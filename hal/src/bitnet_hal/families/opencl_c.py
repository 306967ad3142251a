"""Programs in OpenCL C: arguments are generated from the catalogue, bodies come from files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bitnet_hal.device import Tuning
from bitnet_hal.driver.sources import source_text
from bitnet_hal.kernels.spec import KernelSpec


def program_source(
    folders: Sequence[Path], spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning, *, pointers: bool = False
) -> str:
    """Return the source of one kernel, whose arguments are the buffers and a struct of offsets and parameters.

    A struct is faster: each argument costs NVIDIA's driver about 0.1 us per launch, and a token takes 150 launches.

    pointers: pass pointers (for an API whose pointers may point into a buffer) and the parameters one by one instead.
    folders: searched in this order for the kernel's file, prelude.clh and included files.

    Raises UnsupportedError if a file is missing.
    """
    names = [binding.name for binding in spec.bindings] + (["workspace"] if tuning.workspace else [])
    const = {binding.name: "const " for binding in spec.bindings if binding.access == "r"}
    buffers = [f"__global {const.get(name, '')}uchar *{name}_buffer" for name in names]
    offsets = [("ulong", f"{name}_offset") for name in names]
    params = [("uint" if param.kind == "u32" else "float", param.name) for param in spec.params]
    if pointers:
        struct = ""
        arguments = buffers + [f"const {kind} {name}" for kind, name in params]
        values = [f"const {kind} {name} = 0;" for kind, name in offsets]
    else:
        fields = offsets + params
        arguments = [*buffers, "const launch_arguments launch"]
        struct = f"typedef struct {{ {' '.join(f'{kind} {name};' for kind, name in fields)} }} launch_arguments;\n"
        values = [f"const {kind} {name} = launch.{name};" for kind, name in fields]
    if not tuning.workspace:
        values.append("__global uchar *workspace_buffer = 0; const ulong workspace_offset = 0;")
    defined = f"#define ARGUMENTS {', '.join(arguments)}\n#define PARAMETERS {' '.join(values)}\n"
    prelude = source_text(folders, "prelude.clh", {**constants, **tuning.tile, **tuning.private}, backend="opencl")
    return struct + defined + prelude + source_text(folders, f"{tuning.source(spec.name)}.cl", {}, backend="opencl")
