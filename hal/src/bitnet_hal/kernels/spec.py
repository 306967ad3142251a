"""The description of a kernel: bindings, parameters, constants and grid."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from bitnet_hal.kernels.types import Grid

ElementType = Literal["u8", "i8", "i32", "f32"]
Access = Literal["r", "w", "rw"]

Params = Mapping[str, int | float]
"""The parameters of a launch, by name."""
ParamDict = dict[str, int | float]
"""Params as a dict, which `|` can combine."""
Constants = Mapping[str, int]
"""Compile-time constants, by name: those of a kernel, or its tile."""
Size = Callable[[Params, Constants], int]

ITEM_BYTES: Mapping[ElementType, int] = {"u8": 1, "i8": 1, "i32": 4, "f32": 4}


@dataclass(frozen=True, slots=True)
class Binding:
    """A buffer argument of a kernel. `shape` is prose in terms of the parameters; access "rw" includes partial
    writes.

    elements: returns the elements of `dtype` that a view must have. If the contents of other buffers decide which
    elements a launch touches (caches, rows by index), it is the minimum for these parameters.
    """

    name: str
    dtype: ElementType
    access: Access
    shape: str
    elements: Size

    def nbytes(self, params: Params, constants: Constants) -> int:
        """Return the bytes that a view must have."""
        return self.elements(params, constants) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Param:
    """A 32-bit scalar argument, fixed when a launch is recorded."""

    name: str
    kind: Literal["u32", "f32"]
    meaning: str


@dataclass(frozen=True, slots=True, eq=False)
class KernelSpec:
    """A kernel of the catalogue, compared by identity. Its name is that of the entry point and of the source file in
    every plugin.

    constants: semantic compile-time constants, each with its allowed values.
    tuning: names of the compile-time constants that the grid depends on; the device chooses them (`Tuning.tile`).
    grid: returns the workgroups for parameters and a tile. Only the launcher calls it; a device launches the grid it
    receives.
    base: True if every device must offer the kernel; other kernels are optional and listed in DeviceInfo.kernels.
    """

    name: str
    meaning: str
    bindings: tuple[Binding, ...]
    params: tuple[Param, ...]
    grid: Callable[[Params, Constants], Grid]
    constants: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    tuning: tuple[str, ...] = ()
    base: bool = True

    def pack(self, params: Params) -> bytes:
        """Return the parameters in the device's format: four little-endian bytes each, in the order of `params`.

        Raises KeyError for a missing parameter, ValueError for an unknown one or a value that does not fit in 32 bits.
        """
        if unknown := set(params) - {param.name for param in self.params}:
            raise ValueError(f"{self.name} has no parameter {', '.join(sorted(unknown))}")
        try:
            return b"".join(
                struct.pack("<I" if param.kind == "u32" else "<f", params[param.name]) for param in self.params
            )
        except struct.error as exc:
            raise ValueError(f"{self.name}: a parameter does not fit in 32 bits: {dict(params)}") from exc

    def unpack(self, packed: bytes) -> dict[str, int | float]:
        """Return the parameters of `pack`'s bytes. Raises ValueError if the length is wrong."""
        if len(packed) != 4 * len(self.params):
            raise ValueError(f"{self.name} takes {4 * len(self.params)} bytes of parameters, not {len(packed)}")
        values = struct.unpack("<" + "".join("I" if param.kind == "u32" else "f" for param in self.params), packed)
        return {param.name: value for param, value in zip(self.params, values, strict=True)}

    def check_tile(self, tile: Constants) -> None:
        """Raise ValueError unless the tile has exactly the names in `tuning`, each with a value of 1 or more."""
        if set(tile) != set(self.tuning) or any(value < 1 for value in tile.values()):
            names = ", ".join(self.tuning) or "no constants"
            raise ValueError(f"{self.name}: the tile {dict(tile)} must have {names}, each 1 or more")

    def check_constants(self, constants: Constants) -> None:
        """Raise ValueError unless every semantic constant is present with an allowed value."""
        for name, allowed in self.constants.items():
            if constants.get(name) not in allowed:
                raise ValueError(f"{self.name}: constant {name} is {constants.get(name)}, not one of {allowed}")
