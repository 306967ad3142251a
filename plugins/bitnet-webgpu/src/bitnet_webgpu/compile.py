"""Assembly of a kernel's WGSL text, and compilation to pipelines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bitnet_hal.checks import writes
from bitnet_hal.plugin import CompiledKernel, Grid, KernelSpec, Tuning, with_includes

from bitnet_webgpu.driver import BACKEND, Handle, trusted_module
from bitnet_webgpu.errors import checked

KERNELS = Path(__file__).parent / "kernels"
SUBGROUPS = "SUBGROUPS"
"""The private constant with the number of neighbouring threads in one subgroup; 1 if subgroups are not used."""


@dataclass(frozen=True, eq=False, slots=True)
class WebGpuKernel(CompiledKernel):
    """Pipelines of one source: `main`, followed by `merge` if there is a workspace between them."""

    layout: Handle
    pipelines: tuple[Handle, ...]


def source(spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> str:
    """Return the WGSL text: constants, parameters (a uniform after all other bindings), kernel.

    A browser requires `enable subgroups;` before a text that uses them; wgpu's compiler rejects that line.
    """
    values = {name: constants[name] for name in spec.constants} | dict(tuning.tile) | dict(tuning.private)
    consts = "".join(f"const {name} = {value}u;\n" for name, value in values.items())
    fields = ", ".join(f"{param.name}: {param.kind}" for param in spec.params)
    binding = len(writes(spec, tuning))
    params = f"struct Params {{ {fields} }}\n@group(0) @binding({binding}) var<uniform> p: Params;\n"
    folders = [KERNELS / "subgroups", KERNELS] if values[SUBGROUPS] > 1 else [KERNELS]
    return consts + params + with_includes(folders, f"{tuning.source(spec.name)}.wgsl", backend=BACKEND)


def stages(grid: Grid, tuning: Tuning) -> dict[str, Grid]:
    """Return the entry points and their grids.

    `merge` combines the partial results that the workgroups of `main` store in the workspace, with one workgroup for
    each head that a workgroup of `main` processes.
    """
    if not tuning.workspace:
        return {"main": grid}
    x, y, _ = grid
    return {"main": grid, "merge": (x, y, tuning.tile.get("TILE_N", 1))}


def built(
    device: Handle, name: str, kernel: str, code: str, written: Sequence[bool], entries: Iterable[str]
) -> tuple[Handle, tuple[Handle, ...]]:
    """Return the bind group layout and a pipeline for each entry point of a source.

    name: the device's. written: whether the kernel writes each of its buffers. Raises KernelCompileError with the
    compiler's log.
    """
    kinds = ["storage" if writes else "read-only-storage" for writes in written] + ["uniform"]
    bound = [{"binding": i, "visibility": "COMPUTE", "buffer": {"type": kind}} for i, kind in enumerate(kinds)]
    with checked("compile", name, kernel=kernel):
        layout = device.create_bind_group_layout(entries=bound)
        pipeline_layout = device.create_pipeline_layout(bind_group_layouts=[layout])
        module = trusted_module(device, code)
        stages = [{"module": module, "entry_point": entry} for entry in entries]
        pipelines = [device.create_compute_pipeline(layout=pipeline_layout, compute=stage) for stage in stages]
        return layout, tuple(pipelines)
