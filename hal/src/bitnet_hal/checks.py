"""Checks that a device makes before it touches memory. Each raises ValueError saying what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from bitnet_hal.device import DeviceInfo, Kernel, Tuning, View
from bitnet_hal.kernels.types import Grid

if TYPE_CHECKING:
    from bitnet_hal.kernels.spec import KernelSpec


def check_transfer(operation: str, source: int, target: int, *offsets: int) -> None:
    """An upload, download or copy of `source` bytes into `target`, at these offsets of buffers."""
    if source != target:
        raise ValueError(f"{operation} of {source} bytes into {target}")
    for offset in offsets:
        if offset % 4:
            raise ValueError(f"{operation} at {offsets[0]}: offsets are multiples of 4")


def check_launch(kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes, info: DeviceInfo) -> None:
    """The number of views and parameter bytes, each view's alignment and size, and the grid suit kernel and device, and
    no view that is written overlaps another.

    How long a view must be stands in the catalogue (`Binding.elements`).
    """
    spec, workspace = kernel.spec, kernel.tuning.workspace
    count = len(spec.bindings) + (workspace > 0)
    if len(views) != count:
        raise ValueError(f"{spec.name} binds {count} views, not {len(views)}")
    if len(params) != 4 * len(spec.params):
        raise ValueError(f"{spec.name} takes {4 * len(spec.params)} bytes of parameters, not {len(params)}")
    if any(limit and size > limit for size, limit in zip(grid, info.max_grid, strict=True)):
        raise ValueError(f"{spec.name}: a grid of {grid}, and the device's largest is {info.max_grid}")
    least = _least_bytes(spec, params, tuple(kernel.constants.items())) + ((workspace,) if workspace else ())
    names = (*(binding.name for binding in spec.bindings), "workspace")
    for name, view, needed in zip(names, views, least, strict=False):
        if view.offset % info.alignment:
            raise ValueError(f"{spec.name}: {name} is bound at {view.offset}, not a multiple of {info.alignment}")
        if not 0 < view.nbytes <= (info.max_binding or view.nbytes):  # 0: the device names no limit
            raise ValueError(f"{spec.name}: {name} is a view of {view.nbytes} bytes, which cannot be bound")
        if view.nbytes < needed:
            shape = next((binding.shape for binding in spec.bindings if binding.name == name), "")
            raise ValueError(f"{spec.name}: {name} {shape} needs {needed} bytes, and its view has {view.nbytes}")
    _check_overlaps(kernel, views, names)


def writes(spec: KernelSpec, tuning: Tuning) -> tuple[bool, ...]:
    """For each view of a launch, whether it is written."""
    return (*(binding.access != "r" for binding in spec.bindings), *[True] * (tuning.workspace > 0))


def _check_overlaps(kernel: Kernel, views: Sequence[View], names: Sequence[str]) -> None:
    """A view that is written shares no byte with another: WebGPU forbids it, and compilers count on it."""
    for i in (i for i, writing in enumerate(writes(kernel.spec, kernel.tuning)) if writing):
        one = views[i]
        for j, other in enumerate(views):
            if (
                i != j
                and one.buffer is other.buffer
                and one.offset < other.offset + other.nbytes
                and other.offset < one.offset + one.nbytes
            ):
                raise ValueError(f"{kernel.spec.name}: the views of {names[i]} and {names[j]} overlap")


@lru_cache(maxsize=1024)
def _least_bytes(spec: KernelSpec, params: bytes, constants: tuple[tuple[str, int], ...]) -> tuple[int, ...]:
    """What each view must have; kept, since the layers of a model launch the same kernels with the same parameters."""
    values, semantic = spec.unpack(params), dict(constants)
    return tuple(binding.nbytes(values, semantic) for binding in spec.bindings)
