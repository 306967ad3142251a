"""Recorded launches in which a rotation of one row and the product that reads it are one launch.

The first workgroups of a joined launch rotate and quantize the row, and all workgroups wait for them, with their first
weights on the way. A plugin has a source `<rotation>_product` for each of ROTATED_KERNELS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Generic

from bitnet_hal.device import Tuning
from bitnet_hal.kernels.catalogue import ROTATED_KERNELS
from bitnet_hal.kernels.spec import Constants, KernelSpec
from bitnet_hal.launches import B, Bound, BoundLaunch, K

COUNTER_BYTES = 512
"""Bytes of the counters with which the workgroups of a launch wait for each other."""
VARIANT = "row"
"""The variant of matmul_ternary_block whose launches are joined."""
NEAR = 3
"""The largest distance between a rotation and its product: that of a delta net's gates lies between."""
_QUANTIZED = ("q", "scale", "qsum")
_PRODUCT = ("w", "wscale", "y")
_PRODUCT_PARAMS = ("outs", "y_first")


class RotationJoiner(Generic[B, K]):
    """The joined kernels of a device.

    compiled: compiles a kernel. allocated: allocates zeroed device memory of COUNTER_BYTES. private: the names of the
    rotation's private constants that the joined kernel needs, beside those of the product.
    """

    def __init__(
        self,
        compiled: Callable[[KernelSpec, Constants, Tuning], K],
        allocated: Callable[[], B],
        private: Sequence[str],
    ) -> None:
        self._compiled = compiled
        self._counters = cache(allocated)
        self._private = private
        self._kernels: dict[tuple[object, ...], K] = {}

    def joined(self, launches: Sequence[BoundLaunch[B, K]], members: int) -> list[BoundLaunch[B, K]]:
        """Return the launches, each rotation joined to the product of its result if that is among the next NEAR
        launches and independent of those in between.

        members: workgroups that run at the same time.
        """
        result: list[BoundLaunch[B, K]] = []
        taken: set[int] = set()
        for i, launch in enumerate(launches):
            if i in taken:
                continue
            for j in range(i + 1, min(i + 1 + NEAR, len(launches))):
                between = launches[i + 1 : j]
                if _joins(launch, launches[j], members) and not any(_depends(launches[j], one) for one in between):
                    taken.add(j)
                    launch = self._one(launch, launches[j])
                    break
            result.append(launch)
        return result

    def _one(self, rotation: BoundLaunch[B, K], product: BoundLaunch[B, K]) -> BoundLaunch[B, K]:
        first = rotation.kernel
        second = product.kernel
        spec = _spec(first.spec, second.spec)
        own = {name: value for name, value in first.tuning.private.items() if name in self._private}
        tuning = Tuning(second.tuning.tile, "product", {**second.tuning.private, **own}, COUNTER_BYTES)
        constants = {**first.constants, **second.constants}
        key = (spec.name, *sorted(constants.items()), tuning.key)
        kernel = self._kernels.get(key)
        if kernel is None:
            kernel = self._kernels[key] = self._compiled(spec, constants, tuning)
        values = first.spec.unpack(rotation.params)
        values |= {name: value for name, value in second.spec.unpack(product.params).items() if name in _PRODUCT_PARAMS}
        views = _views(product)
        counters = Bound(self._counters(), 0, COUNTER_BYTES)
        bound = (*rotation.bound, *(views[name] for name in _PRODUCT), counters)
        return replace(product, kernel=kernel, bound=bound, params=spec.pack(values))


def _views(launch: BoundLaunch[B, K]) -> dict[str, Bound[B]]:
    names = [binding.name for binding in launch.kernel.spec.bindings]
    return dict(zip(names, launch.bound, strict=False))  # a workspace comes last


def _joins(rotation: BoundLaunch[B, K], product: BoundLaunch[B, K], members: int) -> bool:
    """Return whether the product reads the one row that the launch rotates, and writes nothing that it reads."""
    if rotation.kernel.spec.name not in ROTATED_KERNELS or product.kernel.tuning.variant != VARIANT:
        return False
    groups, rows, _ = rotation.grid
    if rows > 1 or groups > min(members, product.grid[0]):
        return False
    if rotation.kernel.tuning.private["GROUP"] != product.kernel.tuning.private["GROUP"]:
        return False
    before = _views(rotation)
    after = _views(product)
    read = {view.buffer for name, view in before.items() if name not in _QUANTIZED}
    return all(before[name] == after[name] for name in _QUANTIZED) and after["y"].buffer not in read


def _depends(launch: BoundLaunch[B, K], other: BoundLaunch[B, K]) -> bool:
    """Return whether one of the launches writes a buffer that the other uses."""
    return _writes_of(launch, other) or _writes_of(other, launch)


def _writes_of(launch: BoundLaunch[B, K], other: BoundLaunch[B, K]) -> bool:
    used = zip(launch.kernel.spec.bindings, launch.bound, strict=False)
    written = {view.buffer for binding, view in used if binding.access != "r"}
    return any(view.buffer in written for view in other.bound)


@cache
def _spec(rotation: KernelSpec, product: KernelSpec) -> KernelSpec:
    """Return the description of the joined kernel: the rotation's y is called `kept`."""
    own = tuple(replace(one, name="kept") if one.name == "y" else one for one in rotation.bindings)
    others = tuple(one for one in product.bindings if one.name in _PRODUCT)
    params = (*rotation.params, *(one for one in product.params if one.name in _PRODUCT_PARAMS))
    constants = {**rotation.constants, **product.constants}
    return replace(product, name=rotation.name, bindings=own + others, params=params, constants=constants)
