"""Conversions between bits and f32, for kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
import numpy.typing as npt

F = TypeVar("F", bound=Callable[..., Any])
U8 = npt.NDArray[np.uint8]
I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]

ONE = np.float32(1)
ZERO = np.float32(0)


def device_function(function: F) -> F:
    """Compile a function that kernels call. With numpy's error model a division by zero is Inf, not an exception."""
    compiled: F = numba.njit(error_model="numpy", cache=True)(function)  # type: ignore[assignment]  # called as it is
    return compiled


@device_function
def half_to_float(bits: Any) -> Any:
    """Convert f16 bits to f32."""
    sign = np.float32(-1 if bits & 0x8000 else 1)
    exponent, fraction = (bits >> 10) & 31, bits & 1023
    if exponent == 31:
        return sign * np.float32(np.nan if fraction else np.inf)
    if exponent == 0:
        return sign * np.float32(fraction) * np.float32(2.0**-24)
    return sign * np.uint32((exponent + 112) << 23 | fraction << 13).view(np.float32)


@device_function
def float_to_half(x: Any) -> Any:
    """Convert f32 to f16 bits, rounded to nearest even."""
    bits = np.int64(np.float32(x).view(np.uint32))
    sign, rest = (bits >> 16) & 0x8000, bits & 0x7FFFFFFF
    if rest > 0x7F800000:
        return sign | 0x7E00
    if rest >= 0x477FF000:  # at and above 65520 everything rounds to Inf
        return sign | 0x7C00
    if rest < 0x38800000:  # subnormal in f16: steps of 2^-24
        return sign | np.int64(np.rint(np.abs(np.float64(x)) * 16777216.0))
    return sign | ((rest - 0x38000000 + 0xFFF + ((rest >> 13) & 1)) >> 13)


@device_function
def read_f16(data: U8, at: int) -> Any:
    """Read an f16 at byte `at` as f32."""
    return half_to_float(np.int64(data[at]) | np.int64(data[at + 1]) << 8)


@device_function
def read_bf16(data: U8, at: int) -> Any:
    """Read a bf16 (the upper half of an f32) at byte `at` as f32."""
    bits = np.uint32(data[at]) | np.uint32(data[at + 1]) << np.uint32(8)
    return np.uint32(bits << np.uint32(16)).view(np.float32)


@device_function
def read_f32(data: U8, at: int) -> Any:
    """Read an f32 at byte `at`."""
    low = np.uint32(data[at]) | np.uint32(data[at + 1]) << np.uint32(8)
    high = np.uint32(data[at + 2]) | np.uint32(data[at + 3]) << np.uint32(8)
    return np.uint32(low | high << np.uint32(16)).view(np.float32)


@device_function
def write_f32(data: U8, at: int, x: Any) -> None:
    """Write an f32 at byte `at`."""
    bits = np.float32(x).view(np.uint32)
    for byte in range(4):
        data[at + byte] = np.uint8((bits >> np.uint32(8 * byte)) & np.uint32(255))


@device_function
def to_int8(x: Any) -> Any:
    """Round half to even and clip."""
    return max(-128, min(127, np.int64(np.rint(x))))
