"""Checks that a device makes before it touches memory. Each raises ValueError saying what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from bitnet_core.hal.device import DeviceInfo, View

if TYPE_CHECKING:
    from bitnet_core.kernels.spec import Constants, KernelSpec


def check_transfer(operation: str, source: int, target: int) -> None:
    """An upload, download or copy has `source` bytes on one side and `target` bytes on the other."""
    if source != target:
        raise ValueError(f"{operation} of {source} bytes into {target}")


def check_launch(
    spec: KernelSpec, views: Sequence[View], params: bytes, info: DeviceInfo, constants: Constants
) -> None:
    """The number of views and parameter bytes, and each view's alignment and size, suit the kernel and the device.

    constants: the compiled kernel's. How long a view must be stands in the catalogue (`Binding.elements`).
    """
    if len(views) != len(spec.bindings):
        raise ValueError(f"{spec.name} binds {len(spec.bindings)} views, not {len(views)}")
    if len(params) != 4 * len(spec.params):
        raise ValueError(f"{spec.name} takes {4 * len(spec.params)} bytes of parameters, not {len(params)}")
    least = _least_bytes(spec, params, tuple(constants.items()))
    for binding, view, needed in zip(spec.bindings, views, least, strict=True):
        if view.offset % info.alignment:
            raise ValueError(
                f"{spec.name}: {binding.name} is bound at {view.offset}, not a multiple of {info.alignment}"
            )
        if not 0 < view.nbytes <= (info.max_binding or view.nbytes):  # 0: the device names no limit
            raise ValueError(f"{spec.name}: {binding.name} is a view of {view.nbytes} bytes, which cannot be bound")
        if view.nbytes < needed:
            raise ValueError(
                f"{spec.name}: {binding.name} {binding.shape} needs {needed} bytes, and its view has {view.nbytes}"
            )


@lru_cache(maxsize=1024)
def _least_bytes(spec: KernelSpec, params: bytes, constants: tuple[tuple[str, int], ...]) -> tuple[int, ...]:
    """What each view must have; kept, since the layers of a model launch the same kernels with the same parameters."""
    values, semantic = spec.unpack(params), dict(constants)
    return tuple(binding.nbytes(values, semantic) for binding in spec.bindings)
