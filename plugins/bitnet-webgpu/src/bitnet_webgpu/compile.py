"""From a kernel of the catalogue to WGSL text, and from text to pipelines."""

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
"""Constant of a tuning: so many neighbouring threads are a subgroup, or part of one; 1 where none are used."""


@dataclass(frozen=True, eq=False, slots=True)
class WebGpuKernel(CompiledKernel):
    """Pipelines of one source: `main`, and after it `merge` where a workspace stands between the two."""

    layout: Handle
    pipelines: tuple[Handle, ...]


def source(spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> str:
    """The whole text: constants, parameters (a uniform after all other bindings), kernel. Where it uses subgroups, a
    browser wants `enable subgroups;` before it, which wgpu's compiler refuses."""
    values = {name: constants[name] for name in spec.constants} | dict(tuning.tile) | dict(tuning.private)
    consts = "".join(f"const {name} = {value}u;\n" for name, value in values.items())
    fields = ", ".join(f"{param.name}: {param.kind}" for param in spec.params)
    binding = len(writes(spec, tuning))
    params = f"struct Params {{ {fields} }}\n@group(0) @binding({binding}) var<uniform> p: Params;\n"
    folders = [KERNELS / "subgroups", KERNELS] if values[SUBGROUPS] > 1 else [KERNELS]
    return consts + params + with_includes(folders, f"{tuning.source(spec.name)}.wgsl", backend=BACKEND)


def stages(grid: Grid, tuning: Tuning) -> dict[str, Grid]:
    """Entry points and their grids. `merge` reads what all workgroups of `main` left in the workspace, in as many
    workgroups as `main` takes heads at a time."""
    x, y, _ = grid
    return {"main": grid} | ({"merge": (x, y, tuning.tile.get("TILE_N", 1))} if tuning.workspace else {})


def built(
    device: Handle, name: str, kernel: str, code: str, written: Sequence[bool], entries: Iterable[str]
) -> tuple[Handle, tuple[Handle, ...]]:
    """The layout of bind groups with such buffers, and a pipeline for each entry point of a source. KernelCompileError
    with the compiler's text if it does not build. name: of the device."""
    kinds = ["storage" if writes else "read-only-storage" for writes in written] + ["uniform"]
    bound = [{"binding": i, "visibility": "COMPUTE", "buffer": {"type": kind}} for i, kind in enumerate(kinds)]
    with checked("compile", name, kernel=kernel):
        layout = device.create_bind_group_layout(entries=bound)
        whole = device.create_pipeline_layout(bind_group_layouts=[layout])
        text = trusted_module(device, code)
        stages = [{"module": text, "entry_point": entry} for entry in entries]
        return layout, tuple(device.create_compute_pipeline(layout=whole, compute=stage) for stage in stages)
