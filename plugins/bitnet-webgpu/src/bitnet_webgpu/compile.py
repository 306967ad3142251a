"""From a kernel of the catalogue to WGSL text, and from text to pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from bitnet_core.hal import Grid, Tuning
from bitnet_core.hal.sources import with_includes
from bitnet_core.kernels.spec import KernelSpec

from bitnet_webgpu.driver import Handle, module, raw, trusted_module
from bitnet_webgpu.errors import BACKEND, Stage, checked

KERNELS = Path(__file__).parent / "kernels"
SUBGROUPS = "SUBGROUPS"
"""Constant of a tuning: so many neighbouring threads are a subgroup, or part of one; 1 where none are used."""


@dataclass(frozen=True, eq=False, slots=True)
class WebGpuKernel:
    """Pipelines of one source: `main`, and after it `merge` where a workspace stands between the two."""

    spec: KernelSpec
    constants: Mapping[str, int]
    tuning: Tuning
    layout: Handle
    pipelines: tuple[Handle, ...]
    handles: tuple[Handle, ...]  # of the pipelines


def source(spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> str:
    """The whole text: constants, parameters (a uniform after all other bindings), kernel. Where it uses subgroups, a
    browser wants `enable subgroups;` before it, which wgpu's compiler refuses."""
    values = {name: constants[name] for name in spec.constants} | dict(tuning.tile) | dict(tuning.private)
    consts = "".join(f"const {name} = {value}u;\n" for name, value in values.items())
    fields = ", ".join(f"{param.name}: {param.kind}" for param in spec.params)
    binding = len(writes(spec, tuning))
    params = f"struct Params {{ {fields} }}\n@group(0) @binding({binding}) var<uniform> p: Params;\n"
    folders = [KERNELS / "subgroups", KERNELS] if values[SUBGROUPS] > 1 else [KERNELS]
    name = f"{spec.name}_{tuning.variant}" if tuning.variant else spec.name
    return consts + params + with_includes(folders, f"{name}.wgsl", backend=BACKEND)


def stages(grid: Grid, tuning: Tuning) -> dict[str, Grid]:
    """Entry points and their grids. `merge` reads what all workgroups of `main` left in the workspace, in as many
    workgroups as `main` takes heads at a time."""
    x, y, _ = grid
    return {"main": grid} | ({"merge": (x, y, tuning.tile.get("TILE_N", 1))} if tuning.workspace else {})


def writes(spec: KernelSpec, tuning: Tuning) -> tuple[bool, ...]:
    """For each storage buffer, whether it is written."""
    return (*(binding.access != "r" for binding in spec.bindings), *[True] * (tuning.workspace > 0))


class Compiler:
    """Makes pipelines on one device; layouts are shared."""

    def __init__(self, device: Handle, name: str) -> None:
        self._device, self._name = device, name
        self._layouts: dict[tuple[bool, ...], tuple[Handle, Handle]] = {}

    def kernel(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> WebGpuKernel:
        """KernelCompileError with the compiler's text if it does not build."""
        layout, whole = self.layout(writes(spec, tuning))
        entries = tuple(stages((1, 1, 1), tuning))
        pipelines = self.pipelines(spec.name, source(spec, constants, tuning), whole, entries)
        handles = tuple(raw(pipeline) for pipeline in pipelines)
        return WebGpuKernel(spec, MappingProxyType(dict(constants)), tuning, layout, pipelines, handles)

    def pipelines(self, kernel: str, code: str, layout: Handle, entries: tuple[str, ...]) -> tuple[Handle, ...]:
        """One for each entry point of a source."""
        with checked(Stage.COMPILE, self._name, kernel=kernel):
            made = trusted_module(self._device, code)
            return tuple(
                self._device.create_compute_pipeline(layout=layout, compute={"module": made, "entry_point": entry})
                for entry in entries
            )

    def layout(self, written: tuple[bool, ...]) -> tuple[Handle, Handle]:
        """Of a bind group with such buffers, and of a pipeline with it alone."""
        if written not in self._layouts:
            kinds = ["storage" if writes else "read-only-storage" for writes in written] + ["uniform"]
            stage = module().ShaderStage.COMPUTE
            entries = [{"binding": i, "visibility": stage, "buffer": {"type": kind}} for i, kind in enumerate(kinds)]
            with checked(Stage.COMPILE, self._name):
                layout = self._device.create_bind_group_layout(entries=entries)
                whole = self._device.create_pipeline_layout(bind_group_layouts=[layout])
            self._layouts[written] = layout, whole
        return self._layouts[written]
