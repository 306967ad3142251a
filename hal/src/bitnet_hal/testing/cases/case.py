"""A launch to try, with its inputs, and what the meaning of the kernel makes of them."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.kernels.spec import KernelSpec, ParamDict
from bitnet_hal.reference.meanings import MEANINGS

Array = npt.NDArray[Any]
Arrays = dict[str, Array]
Rng = np.random.Generator

SENTINEL = 0xA5
"""Byte in guards and in outputs that a kernel has to write whole."""
DTYPES = {"u8": np.uint8, "i8": np.int8, "i32": np.int32, "f32": np.float32}


@dataclass(frozen=True)
class CaseLaunch:
    """Constants, parameters and the contents of every binding before the launch.

    arrays: by binding name; a binding with access "w" may be left out and starts as sentinel bytes (see `outputs`).
    """

    params: ParamDict
    arrays: Arrays
    constants: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One launch of one kernel. `build(rng, *args)` makes its inputs; the generator depends on the id alone.

    exact: no operation of this launch rounds, whatever the order of its sums, so every bit of the result is known.
    """

    kernel: str
    label: str
    build: Callable[..., CaseLaunch]
    args: tuple[object, ...] = ()
    exact: bool = False

    @property
    def id(self) -> str:
        """kernel-label, as pytest shows it."""
        return f"{self.kernel}-{self.label}"

    @property
    def spec(self) -> KernelSpec:
        """The catalogue's entry."""
        return CATALOGUE[self.kernel]

    def launch(self) -> CaseLaunch:
        """Build the inputs: the same ones each time."""
        launch = self.build(np.random.default_rng(zlib.crc32(self.id.encode())), *self.args)
        arrays = {}
        for binding in self.spec.bindings:
            array = launch.arrays[binding.name]
            arrays[binding.name] = np.ascontiguousarray(array, dtype=DTYPES[binding.dtype]).reshape(-1)
        return CaseLaunch(launch.params, arrays, launch.constants)


def blank(count: int, dtype: str) -> Array:
    """An output that the kernel must write whole: sentinel bytes."""
    return np.full(count * np.dtype(DTYPES[dtype]).itemsize, SENTINEL, np.uint8).view(DTYPES[dtype])


def expected(spec: KernelSpec, launch: CaseLaunch) -> Arrays:
    """Every binding after the launch, by the numpy meaning."""
    arrays = {name: array.copy() for name, array in launch.arrays.items()}
    with np.errstate(all="ignore"):
        MEANINGS[spec.name](arrays, launch.params, launch.constants)
    return arrays
