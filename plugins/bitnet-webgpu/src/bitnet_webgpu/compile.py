"""From a kernel of the catalogue to WGSL text, and from text to pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from bitnet_core.hal import Tuning
from bitnet_core.kernels.spec import KernelSpec
from bitnet_core.kernels.types import Grid

from bitnet_webgpu.driver import Handle, module, raw, trusted_module
from bitnet_webgpu.errors import Stage, checked

_USE = "// use "
"""A line of a kernel that names the parts it is made of."""
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


@cache
def _file(name: str) -> str:
    return (files("bitnet_webgpu") / "kernels" / f"{name}.wgsl").read_text("utf-8")


def source(spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> str:
    """The whole text: constants, parameters (a uniform after all other bindings), parts, kernel."""
    name = f"{spec.name}_{tuning.variant}" if tuning.variant else spec.name
    text = _file(name)
    parts = [part for line in text.splitlines() if line.startswith(_USE) for part in line.removeprefix(_USE).split()]
    if tuning.private.get(SUBGROUPS, 1) > 1:
        parts = ["reduce_subgroups" if part == "reduce" else part for part in parts]
    values = {name: constants[name] for name in spec.constants} | dict(tuning.tile) | dict(tuning.private)
    consts = "".join(f"const {name} = {value}u;\n" for name, value in values.items())
    fields = ", ".join(f"{param.name}: {param.kind}" for param in spec.params)
    params = f"struct Params {{ {fields} }}\n"
    params += f"@group(0) @binding({bindings(spec, tuning)}) var<uniform> p: Params;\n"
    return "\n".join([consts + params, *map(_file, parts), text])


def bindings(spec: KernelSpec, tuning: Tuning) -> int:
    """Storage buffers of a launch."""
    return len(spec.bindings) + (tuning.workspace > 0)


def entry_points(tuning: Tuning) -> tuple[str, ...]:
    """`merge` reads what all workgroups of `main` left in the workspace."""
    return ("main", "merge") if tuning.workspace else ("main",)


def grids(grid: Grid, tuning: Tuning) -> tuple[Grid, ...]:
    """Of each entry point: what SPLITS workgroups leave, one merges; a head each where these took TILE_N heads."""
    x, y, _ = grid
    return (grid, (x, y, tuning.tile.get("TILE_N", 1))) if tuning.workspace else (grid,)


def writes(spec: KernelSpec, tuning: Tuning) -> list[bool]:
    """For each storage buffer, whether it is written."""
    return [binding.access != "r" for binding in spec.bindings] + [True] * (tuning.workspace > 0)


class Compiler:
    """Makes pipelines on one device; layouts are shared."""

    def __init__(self, device: Handle, name: str) -> None:
        self._device, self._name = device, name
        self._layouts: dict[tuple[bool, ...], tuple[Handle, Handle]] = {}

    def kernel(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> WebGpuKernel:
        """KernelCompileError with the compiler's text if it does not build."""
        layout, whole = self._layout(tuple(writes(spec, tuning)))
        pipelines = self.pipelines(spec.name, source(spec, constants, tuning), whole, entry_points(tuning))
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

    def _layout(self, written: tuple[bool, ...]) -> tuple[Handle, Handle]:
        """Of a bind group, and of a pipeline with it alone."""
        if written not in self._layouts:
            kinds = ["storage" if writes else "read-only-storage" for writes in written] + ["uniform"]
            stage = module().ShaderStage.COMPUTE
            entries = [{"binding": i, "visibility": stage, "buffer": {"type": kind}} for i, kind in enumerate(kinds)]
            with checked(Stage.COMPILE, self._name):
                layout = self._device.create_bind_group_layout(entries=entries)
                whole = self._device.create_pipeline_layout(bind_group_layouts=[layout])
            self._layouts[written] = layout, whole
        return self._layouts[written]
