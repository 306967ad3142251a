"""Checks that a device makes before it touches memory. Each raises ValueError saying what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bitnet_core.hal.device import DeviceInfo, View

if TYPE_CHECKING:
    from bitnet_core.kernels.spec import KernelSpec


def check_transfer(operation: str, source: int, target: int) -> None:
    """An upload, download or copy has `source` bytes on one side and `target` bytes on the other."""
    if source != target:
        raise ValueError(f"{operation} of {source} bytes into {target}")


def check_launch(spec: KernelSpec, views: Sequence[View], params: bytes, info: DeviceInfo) -> None:
    """The number of views and parameter bytes, and each view's alignment and size, suit the kernel and the device."""
    if len(views) != len(spec.bindings):
        raise ValueError(f"{spec.name} binds {len(spec.bindings)} views, not {len(views)}")
    if len(params) != 4 * len(spec.params):
        raise ValueError(f"{spec.name} takes {4 * len(spec.params)} bytes of parameters, not {len(params)}")
    for binding, view in zip(spec.bindings, views, strict=True):
        if view.offset % info.alignment:
            raise ValueError(
                f"{spec.name}: {binding.name} is bound at {view.offset}, not a multiple of {info.alignment}"
            )
        if not 0 < view.nbytes <= info.max_binding:
            raise ValueError(f"{spec.name}: {binding.name} is a view of {view.nbytes} bytes, which cannot be bound")
