"""Matrices of MLX folders: codes of 1, 2, 4 or 8 bits in u32 words, the first in the lowest bits, with a scale and a
bias for each group of columns: value = code * scale + bias.

A pack is ternary if its codes have 2 bits and bias = -scale, or if they have 1 bit and bias = -scale / 2: then its
values are -d and d with d = scale / 2, ternary weights without a zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError
from bitnet_core.formats.ternary.codes import Bytes, pack, row_chunks, unpack
from bitnet_core.formats.ternary.scales import Floats, collapse, per_block
from bitnet_core.model.weights import DenseWeight, TernaryWeight, padded

TERNARY_BITS = 2
BINARY_BITS = 1
TERNARY_WIDTHS = (BINARY_BITS, TERNARY_BITS)
WIDTHS = (1, 2, 4, 8)
"""The supported widths of a code, in bits."""


@dataclass(frozen=True, slots=True)
class Pack:
    """A packed matrix: words u8[rows, columns * bits / 8], scales and biases f32[rows, columns / group]."""

    bits: int
    words: Bytes
    scales: Floats
    biases: Floats

    @property
    def columns(self) -> int:
        return int(self.words.shape[1]) * 8 // self.bits

    @property
    def group(self) -> int:
        return self.columns // int(self.scales.shape[1])

    def picked(self, rows: Any) -> Pack:
        """Return the pack of some of the rows."""
        return Pack(self.bits, self.words[rows], self.scales[rows], self.biases[rows])

    def codes(self) -> Iterator[tuple[slice, Bytes]]:
        """Yield slices of rows with their codes u8[n, columns]."""
        shifts = np.arange(0, 8, self.bits, dtype=np.uint8)
        for part in row_chunks(len(self.words), self.columns):
            codes = (self.words[part, :, None] >> shifts) & np.uint8((1 << self.bits) - 1)
            yield part, codes.reshape(len(codes), -1)


def ternary(pack_: Pack) -> TernaryWeight:
    """Return the matrix of a ternary pack. Raises ModelError for any other pack."""
    if pack_.bits == BINARY_BITS:
        return _binary(pack_)
    if pack_.bits != TERNARY_BITS:
        raise ModelError(f"is packed in {pack_.bits} bits, which is not a ternary matrix")
    if (pack_.biases != -pack_.scales).any():
        raise ModelError(
            "is an affine 2-bit pack (a bias is not minus its scale), which is not ternary: the model was quantized "
            "with a general tool; use its ternary pack"
        )
    rows, columns, group = len(pack_.words), pack_.columns, pack_.group
    packed = np.empty((rows, padded(columns) // 4), np.uint8)
    used = np.empty(pack_.scales.shape, np.bool_)
    illegal = 0
    for part, codes in pack_.codes():
        groups = codes.reshape(len(codes), -1, group)
        groups[pack_.scales[part] == 0] = 1  # a scale of 0 makes every value 0
        illegal += int(np.count_nonzero(codes == 3))
        used[part] = (groups != 1).any(axis=2)
        packed[part] = pack(codes)
    if illegal:
        raise ModelError(
            f"illegal ternary code 3 (twice the scale) in {illegal} of {rows * columns} weights read: the data is "
            "damaged, or has more than three levels"
        )
    return collapse(rows, columns, packed, pack_.scales, used, group)


def _binary(pack_: Pack) -> TernaryWeight:
    """Return the matrix of a pack of 1-bit codes. Raises ModelError unless each bias is minus half its scale."""
    if (pack_.biases != -pack_.scales / 2).any():
        raise ModelError(
            "is a 1-bit pack whose biases are not minus half its scales: its two values are not -d and d, which is "
            "not supported; use the model's GGUF file (Q1_0)"
        )
    rows, columns, group = len(pack_.words), pack_.columns, pack_.group
    packed = np.empty((rows, padded(columns) // 4), np.uint8)
    for part, codes in pack_.codes():
        groups = (codes << np.uint8(1)).reshape(len(codes), -1, group)
        groups[pack_.scales[part] == 0] = 1
        packed[part] = pack(groups.reshape(len(codes), -1))
    return collapse(rows, columns, packed, pack_.scales * np.float32(0.5), pack_.scales != 0, group)


def floats(pack_: Pack) -> DenseWeight:
    """Return the matrix of any pack as f16. Raises ModelError for values that f16 cannot hold."""
    rows, columns = len(pack_.words), pack_.columns
    halves: npt.NDArray[np.float16] = np.empty((rows, columns), "<f2")
    for part, codes in pack_.codes():
        scales, biases = (np.repeat(each[part], pack_.group, axis=1) for each in (pack_.scales, pack_.biases))
        with np.errstate(all="ignore"):
            halves[part] = codes * scales + biases
        if not np.isfinite(halves[part]).all():
            raise ModelError("a value is outside the range of f16: the data is damaged")
    return DenseWeight("f16", rows, columns, halves.view(np.uint8))


def encode(weight: TernaryWeight, group: int) -> tuple[Bytes, npt.NDArray[np.float16]]:
    """Encode words u8[rows, columns / 4] and scales f16[rows, columns / group] of a ternary pack; its biases are
    -scales.

    Raises ModelError if the groups or f16 cannot hold the scales exactly.
    """
    if weight.columns % group:
        raise ModelError(f"{weight.columns} columns are not a multiple of {group}")
    scales = per_block(weight, group)
    with np.errstate(over="ignore"):
        halves = scales.astype("<f2")
    if (halves != scales).any():
        raise ModelError("f16 would round its scales; convert to safetensors or i2_s instead")
    words = np.empty((weight.rows, weight.columns // 4), np.uint8)
    shifts = np.arange(0, 8, TERNARY_BITS, dtype=np.uint8)
    for part in row_chunks(weight.rows, weight.columns):
        codes = unpack(weight.codes[part], weight.columns).reshape(part.stop - part.start, -1, 4)
        words[part] = np.bitwise_or.reduce(codes << shifts, axis=2)
    return words, halves
