"""Dense tensor types: decoding to float32, and the form in which embeddings and heads reach the kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError
from bitnet_core.model.weights import DENSE_BLOCKS, DenseType, DenseWeight

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

CHUNK = 1 << 22
"""Elements that are converted at a time."""

KERNEL_TYPES: dict[str, DenseType] = {"F32": "f32", "F16": "f16", "BF16": "bf16", "Q8_0": "q8_0", "Q6_K": "q6_K"}
"""Types whose bytes the kernels read as they are, by their name in the file."""


def from_file(data: Bytes, dtype: str, rows: int, columns: int) -> DenseWeight:
    """W[rows, columns] from the bytes of a tensor; Q4_0, for which there is no kernel, becomes f16."""
    if dtype in KERNEL_TYPES:
        return DenseWeight(KERNEL_TYPES[dtype], rows, columns, data.reshape(rows, -1))
    if dtype != "Q4_0":
        raise ModelError(f"an embedding or head of type {dtype} is not supported")
    halves = np.empty((rows, columns), "<f2")
    raw = data.reshape(rows, -1)
    for part in _chunks(rows, columns):
        with np.errstate(over="ignore"):
            halves[part] = decode(raw[part], "q4_0", columns)
        if not np.isfinite(halves[part]).all():
            raise ModelError("a value is outside the range of f16: the data is damaged")
    return DenseWeight("f16", rows, columns, halves.view(np.uint8))


def _chunks(rows: int, columns: int) -> Iterator[slice]:
    step = max(CHUNK // max(columns, 1), 1)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def decode(data: Bytes, dtype: DenseType, columns: int) -> Floats:
    """Values f32[rows, columns] of raw rows u8[rows, row_bytes]."""
    elements, nbytes = DENSE_BLOCKS[dtype]
    if columns % elements:
        raise ModelError(f"{columns} columns are no whole blocks of {dtype}")
    blocks = np.ascontiguousarray(data).reshape(-1, nbytes)
    with np.errstate(invalid="ignore", over="ignore"):  # whoever uses the values checks them
        return _DECODERS[dtype](blocks).reshape(len(data), columns)


def _f32(blocks: Bytes) -> Floats:
    return blocks.view("<f4").astype(np.float32)


def _f16(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _half(blocks: Bytes, at: int) -> Floats:
    """The f16 scale of each block, f32[n, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _q8_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8)


def _q4_0(blocks: Bytes) -> Floats:
    nibbles = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1)
    return _half(blocks, 0) * (nibbles.astype(np.float32) - 8)


def _q6_k(blocks: Bytes) -> Floats:
    """256 elements: low nibbles ql[128], high bit pairs qh[64], int8 sc[16] (one per 16 elements), f16 d."""
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


_DECODERS: dict[DenseType, Callable[[Bytes], Floats]] = {
    "f32": _f32,
    "f16": _f16,
    "bf16": _bf16,
    "q8_0": _q8_0,
    "q4_0": _q4_0,
    "q6_K": _q6_k,
}
