"""A case: a launch with its inputs, and the outputs that the reference computes."""

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

BATCH_ROWS = 150
"""Rows of each case of batch invariance: a prompt, which the rule cuts into steps at different places."""

SENTINEL = 0xA5
"""Fill byte of guards, and of outputs that a kernel must write completely."""
DTYPES = {"u8": np.uint8, "i8": np.int8, "i32": np.int32, "f32": np.float32}


@dataclass(frozen=True)
class CaseLaunch:
    """Constants, parameters and the contents of every binding before the launch.

    arrays: by binding name; outputs with access "w" start as sentinel bytes (see `blank`).
    """

    params: ParamDict
    arrays: Arrays
    constants: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A launch of one kernel. `build(rng, *args)` makes its inputs; the generator's seed is the hash of the id.

    exact: True if no operation of the launch rounds, in any order of its sums, so that every bit of the result is
    known.
    """

    kernel: str
    label: str
    build: Callable[..., CaseLaunch]
    args: tuple[object, ...] = ()
    exact: bool = False

    @property
    def id(self) -> str:
        """Return kernel-label, the pytest id."""
        return f"{self.kernel}-{self.label}"

    @property
    def spec(self) -> KernelSpec:
        return CATALOGUE[self.kernel]

    def launch(self) -> CaseLaunch:
        """Build the inputs; they are the same each time."""
        launch = self.build(np.random.default_rng(zlib.crc32(self.id.encode())), *self.args)
        arrays = {}
        for binding in self.spec.bindings:
            array = launch.arrays[binding.name]
            arrays[binding.name] = np.ascontiguousarray(array, dtype=DTYPES[binding.dtype]).reshape(-1)
        return CaseLaunch(launch.params, arrays, launch.constants)


def blank(count: int, dtype: str) -> Array:
    """Return an output that the kernel must write completely: sentinel bytes."""
    return np.full(count * np.dtype(DTYPES[dtype]).itemsize, SENTINEL, np.uint8).view(DTYPES[dtype])


def expected(spec: KernelSpec, launch: CaseLaunch) -> Arrays:
    """Return every binding after the launch, as the numpy reference computes it."""
    arrays = {name: array.copy() for name, array in launch.arrays.items()}
    with np.errstate(all="ignore"):
        MEANINGS[spec.name](arrays, launch.params, launch.constants)
    return arrays
