"""Checks of a launch before a device touches memory. Each raises ValueError with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from bitnet_hal.device import DeviceInfo, Kernel, Tuning, View
from bitnet_hal.kernels.types import Grid

if TYPE_CHECKING:
    from bitnet_hal.kernels.spec import KernelSpec


def check_launch(kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes, info: DeviceInfo) -> None:
    """Check a launch: number of views and parameter bytes, alignment and size of each view, grid, and overlaps.

    A written view must not overlap another one. Minimum sizes come from the catalogue (`Binding.elements`).
    """
    spec = kernel.spec
    workspace = kernel.tuning.workspace
    count = len(spec.bindings) + (workspace > 0)
    if len(views) != count:
        raise ValueError(f"{spec.name} binds {count} views, not {len(views)}")
    if len(params) != 4 * len(spec.params):
        raise ValueError(f"{spec.name} takes {4 * len(spec.params)} bytes of parameters, not {len(params)}")
    if any(limit and size > limit for size, limit in zip(grid, info.max_grid, strict=True)):
        raise ValueError(f"{spec.name}: the grid {grid} exceeds the device's maximum {info.max_grid}")
    least = _least_bytes(spec, params, tuple(kernel.constants.items())) + ((workspace,) if workspace else ())
    alignment, most = info.alignment, info.max_binding
    for at, (view, needed) in enumerate(zip(views, least, strict=False)):
        if view.offset % alignment:
            raise ValueError(f"{spec.name}: {_name(spec, at)} is bound at {view.offset}, not a multiple of {alignment}")
        if not 0 < view.nbytes <= (most or view.nbytes):  # 0: no limit is known
            raise ValueError(f"{spec.name}: {_name(spec, at)} is a view of {view.nbytes} bytes, not 1 to {most}")
        if view.nbytes < needed:
            shape = spec.bindings[at].shape if at < len(spec.bindings) else ""
            raise ValueError(f"{spec.name}: {_name(spec, at)} {shape} needs {needed} bytes, its view has {view.nbytes}")
    _check_overlaps(kernel, views)


def _name(spec: KernelSpec, at: int) -> str:
    """Return the name of a launch's view."""
    return spec.bindings[at].name if at < len(spec.bindings) else "workspace"


def writes(spec: KernelSpec, tuning: Tuning) -> tuple[bool, ...]:
    """Return for each view of a launch whether the kernel writes it."""
    return (*(binding.access != "r" for binding in spec.bindings), *[True] * (tuning.workspace > 0))


def _check_overlaps(kernel: Kernel, views: Sequence[View]) -> None:
    """Check that no written view shares a byte with another: WebGPU forbids it, and compilers assume it."""
    for i in _written(kernel.spec, kernel.tuning.workspace > 0):
        one = views[i]
        for j, other in enumerate(views):
            if (
                one.buffer is other.buffer
                and i != j
                and one.offset < other.offset + other.nbytes
                and other.offset < one.offset + one.nbytes
            ):
                names = _name(kernel.spec, i), _name(kernel.spec, j)
                raise ValueError(f"{kernel.spec.name}: the views of {names[0]} and {names[1]} overlap")


@lru_cache(maxsize=1024)
def _written(spec: KernelSpec, workspace: bool) -> tuple[int, ...]:
    """Return the numbers of the views that a kernel writes."""
    written = [at for at, binding in enumerate(spec.bindings) if binding.access != "r"]
    return (*written, len(spec.bindings)) if workspace else tuple(written)


@lru_cache(maxsize=1024)
def _least_bytes(spec: KernelSpec, params: bytes, constants: tuple[tuple[str, int], ...]) -> tuple[int, ...]:
    """Return the minimum bytes of each view. Cached: all layers of a model launch kernels with the same parameters."""
    values = spec.unpack(params)
    semantic = dict(constants)
    return tuple(binding.nbytes(values, semantic) for binding in spec.bindings)
