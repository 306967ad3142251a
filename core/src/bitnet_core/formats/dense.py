"""Dense tensor types: decoding to float32, and conversion to the DenseWeight of embeddings and heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
from bitnet_hal.kernels.types import DENSE_BLOCKS, DenseType

from bitnet_core.errors import ModelError
from bitnet_core.formats import block_types, codebook_types
from bitnet_core.formats.block_types import half
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
        raise ModelError(
            f"type {dtype} is not supported in an embedding or head; quantize it again (llama-quantize "
            "--token-embedding-type q8_0 --output-tensor-type q8_0)"
        )
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


def _q8_0(blocks: Bytes) -> Floats:
    return half(blocks, 0) * blocks[:, 2:].view(np.int8)


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
    scales = half(blocks, 208) * blocks[:, 192:208].view(np.int8)
    return values * scales[:, :, None]


_CONVERTED: dict[str, tuple[int, Callable[[Bytes], Floats]]] = {
    "Q4_0": (18, block_types.q4_0),
    "Q4_1": (20, block_types.q4_1),
    "Q5_0": (22, block_types.q5_0),
    "Q5_1": (24, block_types.q5_1),
    "Q2_K": (84, block_types.q2_k),
    "Q3_K": (110, block_types.q3_k),
    "Q4_K": (144, block_types.q4_k),
    "Q5_K": (176, block_types.q5_k),
    "IQ2_XXS": (66, codebook_types.iq2_xxs),
    "IQ2_XS": (74, codebook_types.iq2_xs),
    "IQ2_S": (82, codebook_types.iq2_s),
    "IQ3_XXS": (98, codebook_types.iq3_xxs),
    "IQ3_S": (110, codebook_types.iq3_s),
    "IQ4_NL": (18, block_types.iq4_nl),
    "IQ4_XS": (136, block_types.iq4_xs),
    "MXFP4": (17, block_types.mxfp4),
}
"""Types converted to f16: the bytes of a block and its decoder."""

MATRIX_TYPES = KERNEL_TYPES.keys() | _CONVERTED.keys()
"""Types that `from_file` takes."""

_DECODERS: dict[DenseType, Callable[[Bytes], Floats]] = {
    "f32": _f32,
    "f16": _f16,
    "bf16": _bf16,
    "q8_0": _q8_0,
    "q4_0": block_types.q4_0,
    "q6_K": _q6_k,
}
