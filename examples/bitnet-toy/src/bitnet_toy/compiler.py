"""Compilation of a kernel's Python function to machine code."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numba
from bitnet_hal.errors import UnsupportedError
from bitnet_hal.plugin import KernelSpec, Tuning
from numba import types

from bitnet_toy.errors import check

ARRAYS = {"u8": types.uint8[::1], "i8": types.int8[::1], "i32": types.int32[::1], "f32": types.float32[::1]}
SCALARS = {"u32": types.int64, "f32": types.float32}


@dataclass(frozen=True, eq=False)
class ToyKernel:
    """A compiled kernel. run(group x, group y, *bindings, *params, *constants) computes one workgroup."""

    spec: KernelSpec
    constants: Mapping[str, int]
    tuning: Tuning
    run: Callable[..., None]


def find(name: str) -> Callable[..., None]:
    """Import the function of a kernel: file name = function name = catalogue name."""
    try:
        module = importlib.import_module(f"bitnet_toy.kernels.{name}")
    except ModuleNotFoundError as exc:
        raise UnsupportedError(f"there is no kernel {name}", backend="toy", operation="compile") from exc
    function: Callable[..., None] = getattr(module, name)
    return function


# --8<-- [start:build]
def build(function: Callable[..., None], spec: KernelSpec) -> Callable[..., None]:
    """Compile for the catalogue's types. Raises KernelCompileError with numba's message."""
    names = (*spec.constants, *spec.tuning)
    signature = types.void(
        types.int64,
        types.int64,
        *(ARRAYS[binding.dtype] for binding in spec.bindings),
        *(SCALARS[param.kind] for param in spec.params),
        *(types.int64 for _ in names),
    )
    with check("compile", kernel=spec.name):
        compiled: Callable[..., None] = numba.njit(signature, error_model="numpy", cache=True)(function)
    return compiled


# --8<-- [end:build]
