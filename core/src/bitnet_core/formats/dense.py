"""Dense tensor types: decoding to float32, and conversion to the DenseWeight of embeddings and heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
from bitnet_hal.kernels.types import DENSE_BLOCKS, DenseType

from bitnet_core.errors import ModelError
from bitnet_core.formats.ternary.codes import unpack
from bitnet_core.model.weights import DenseWeight, TernaryWeight

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

CHUNK = 1 << 22
"""Elements converted in one pass, which bounds the temporary memory."""

KERNEL_TYPES: dict[str, DenseType] = {"F32": "f32", "F16": "f16", "BF16": "bf16", "Q8_0": "q8_0", "Q6_K": "q6_K"}
"""Types whose bytes the kernels read unchanged, by their name in the file."""


def from_file(data: Bytes, dtype: str, rows: int, columns: int) -> DenseWeight:
    """Build the weight W[rows, columns] from a tensor's bytes; types without a kernel are converted to f16.

    Raises ModelError if the type is not supported in an embedding or head, or if f16 cannot hold a value.
    """
    if dtype in KERNEL_TYPES:
        return DenseWeight(KERNEL_TYPES[dtype], rows, columns, data.reshape(rows, -1))
    if dtype not in _CONVERTED:
        raise ModelError(f"type {dtype} is not supported in an embedding or head")
    halves = np.empty((rows, columns), "<f2")
    raw = data.reshape(rows, -1)
    nbytes, decoder = _CONVERTED[dtype]
    for part in _chunks(rows, columns):
        with np.errstate(invalid="ignore", over="ignore"):
            halves[part] = decoder(raw[part].reshape(-1, nbytes)).reshape(-1, columns)
        if not np.isfinite(halves[part]).all():
            raise ModelError("a value is outside the range of f16: the data is damaged")
    return DenseWeight("f16", rows, columns, halves.view(np.uint8))


def from_ternary(weight: TernaryWeight) -> DenseWeight:
    """Convert a ternary table to f16, exactly. Raises ModelError if a scale is not exact in f16."""
    rows, columns = weight.rows, weight.columns
    if (weight.scales != weight.scales.astype(np.float16)).any():
        raise ModelError("a scale of this table is not exact in f16: not supported in an embedding or head")
    halves = np.empty((rows, columns), "<f2")
    scales = np.broadcast_to(weight.scales.reshape(len(weight.scales), -1), (rows, weight.scales[0].size))
    for part in _chunks(rows, columns):
        spread = np.repeat(scales[part], weight.block, axis=1)[:, :columns] if weight.block else scales[part]
        halves[part] = (unpack(weight.codes[part], columns).astype(np.float32) - 1) * spread
    return DenseWeight("f16", rows, columns, halves.view(np.uint8))


def _chunks(rows: int, columns: int) -> Iterator[slice]:
    step = max(CHUNK // max(columns, 1), 1)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def decode(data: Bytes, dtype: DenseType, columns: int) -> Floats:
    """Decode raw rows u8[rows, row_bytes] to values f32[rows, columns].

    Raises ModelError if the columns are not a multiple of the type's block.
    """
    elements, nbytes = DENSE_BLOCKS[dtype]
    if columns % elements:
        raise ModelError(f"{columns} columns are not a multiple of the block of {dtype}")
    blocks = np.ascontiguousarray(data).reshape(-1, nbytes)
    with np.errstate(invalid="ignore", over="ignore"):  # the caller checks the values that it uses
        return _DECODERS[dtype](blocks).reshape(len(data), columns)


def _f32(blocks: Bytes) -> Floats:
    return blocks.view("<f4").astype(np.float32)


def _f16(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _half(blocks: Bytes, at: int) -> Floats:
    """Return the f16 scale of each block, f32[n, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _q8_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8)


def _q4_0(blocks: Bytes) -> Floats:
    nibbles = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1)
    return _half(blocks, 0) * (nibbles.astype(np.float32) - 8)


def _q6_k(blocks: Bytes) -> Floats:
    """Decode blocks of 256 elements: low nibbles ql[128], high bit pairs qh[64], int8 sc[16] (one per 16 elements), f16
    d."""
    low = blocks[:, :128].reshape(-1, 2, 2, 32)  # [block, half, first or second 32 bytes, l]
    high = blocks[:, 128:192].reshape(-1, 2, 32)
    quarters = [
        (low[:, :, 0] & 15) | (high & 3) << 4,
        (low[:, :, 1] & 15) | (high >> 2 & 3) << 4,
        (low[:, :, 0] >> 4) | (high >> 4 & 3) << 4,
        (low[:, :, 1] >> 4) | (high >> 6) << 4,
    ]
    values = np.stack(quarters, axis=2).reshape(-1, 16, 16).astype(np.float32) - 32
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8)
    return values * scales[:, :, None]


def _q4_k(blocks: Bytes) -> Floats:
    """Decode blocks of 256 elements: f16 d and dmin, eight 6-bit scales and minima in 12 bytes, nibbles of four
    64-element groups."""
    packed = blocks[:, 4:16]
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6) << 4], axis=1)
    minima = np.concatenate([second & 63, (third >> 4) | (second >> 6) << 4], axis=1)
    groups = blocks[:, 16:].reshape(-1, 4, 1, 32)
    nibbles = np.concatenate([groups & 15, groups >> 4], axis=2).reshape(-1, 8, 32)
    steps, offsets = _half(blocks, 0) * scales, _half(blocks, 2) * minima
    values: Floats = steps[:, :, None] * nibbles - offsets[:, :, None]
    return values.reshape(-1, 256)


_IQ4_NL = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


def _iq4_nl(blocks: Bytes) -> Floats:
    values: Floats = _half(blocks, 0) * _IQ4_NL[np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1)]
    return values


_CONVERTED: dict[str, tuple[int, Callable[[Bytes], Floats]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_K": (144, _q4_k),
    "IQ4_NL": (18, _iq4_nl),
}
"""Types converted to f16: the bytes of a block and its decoder."""

_DECODERS: dict[DenseType, Callable[[Bytes], Floats]] = {
    "f32": _f32,
    "f16": _f16,
    "bf16": _bf16,
    "q8_0": _q8_0,
    "q4_0": _q4_0,
    "q6_K": _q6_k,
}
