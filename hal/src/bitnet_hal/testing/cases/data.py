"""Random operands in the catalogue's layouts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bitnet_hal.kernels.catalogue import KV_BLOCK
from bitnet_hal.kernels.sizes import SCALE_COLUMNS
from bitnet_hal.rounding import ceil_div, round_up
from bitnet_hal.testing.cases.case import Array, Rng


def padded(width: int) -> int:
    """Return `width` rounded up to a ternary block."""
    return round_up(width, 128)


def normal(rng: Rng, *shape: int) -> npt.NDArray[np.float32]:
    """Return standard normal f32."""
    return rng.standard_normal(shape, dtype=np.float32)


def powers_of_two(rng: Rng, count: int) -> npt.NDArray[np.float32]:
    """Return scales whose products are exact."""
    return np.exp2(rng.integers(-12, 3, count)).astype(np.float32)


def pack_codes(codes: Array) -> Array:
    """Return u8[N, width / 4] in I2_S blocks from codes u8[N, width] (0..3)."""
    planes = codes.astype(np.uint8).reshape(codes.shape[0], -1, 4, 32)
    packed = planes[:, :, 0] << 6 | planes[:, :, 1] << 4 | planes[:, :, 2] << 2 | planes[:, :, 3]
    return np.asarray(packed.reshape(codes.shape[0], -1))


def ternary(rng: Rng, outs: int, width: int, columns: int | None = None) -> Array:
    """Return packed weights of `columns` columns; the padding holds any code, including 3."""
    codes = rng.integers(0, 3, (outs, width))
    if columns is not None:
        codes[:, columns:] = rng.integers(0, 4, (outs, width - columns))
    return pack_codes(codes)


def activations(rng: Rng, rows: int, width: int, columns: int | None = None) -> tuple[Array, Array, Array]:
    """Return (q, scale, qsum) with q = 0 from column `columns` on."""
    q = rng.integers(-128, 128, (rows, width)).astype(np.int8)
    q[:, columns if columns is not None else width :] = 0
    scale = rng.uniform(0.001, 0.1, rows).astype(np.float32)
    return q, scale, q.sum(axis=1, dtype=np.int32)


def group_activations(rng: Rng, rows: int, width: int, columns: int, group_size: int) -> tuple[Array, Array, Array]:
    """Return (q, scale, qsum) with one scale for each `group_size` columns, and q = 0 from column `columns` on."""
    q, _, _ = activations(rng, rows, width, columns)
    scale = rng.uniform(0.001, 0.1, (rows, width // group_size)).astype(np.float32)
    qsum = q.reshape(rows, -1, SCALE_COLUMNS).sum(axis=2, dtype=np.int32)
    return q, scale.repeat(group_size // SCALE_COLUMNS, axis=1), qsum


def mask_bits(allowed: Array) -> Array:
    """Return i32[L, ceil(V / 32)] from bool[L, V]; bits past V are 1 and must be ignored."""
    rows, vocab = allowed.shape
    padded_bits = np.pad(allowed, ((0, 0), (0, -vocab % 32)), constant_values=True)
    return np.packbits(padded_bits, axis=1, bitorder="little").view("<i4").reshape(rows, -1)


def dense_table(rng: Rng, rows: int, columns: int, dtype: int) -> Array:
    """Return u8[...]: `rows` rows of dense type `dtype` (index into DENSE_TYPES)."""
    if dtype == 3:
        blocks = rng.integers(0, 256, (rows * columns // 32, 34)).astype(np.uint8)
        blocks[:, :2] = _halves(rng, len(blocks))
        return blocks.reshape(-1)
    if dtype == 4:
        blocks = rng.integers(0, 256, (rows * columns // 256, 210)).astype(np.uint8)
        blocks[:, 208:] = _halves(rng, len(blocks))
        return blocks.reshape(-1)
    values = normal(rng, rows * columns)
    if dtype == 2:
        return (values.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
    return values.astype(("<f4", "<f2")[dtype]).view(np.uint8)


def _halves(rng: Rng, count: int) -> Array:
    return rng.uniform(1e-4, 1e-2, count).astype("<f2").view(np.uint8).reshape(count, 2)


def step_rows(tokens: Array, positions: Array, slots: Array, sequences: Array) -> Array:
    """Return step i32[T, 4]."""
    return np.stack([tokens, positions, slots, sequences], axis=1).astype(np.int32)


def block_tables(rng: Rng, lengths: list[int], max_blocks: int, n_blocks: int) -> Array:
    """Return tables i32[S, max_blocks]: cache blocks in random order, -1 past each sequence's end."""
    free = rng.permutation(n_blocks).tolist()
    tables = np.full((len(lengths), max_blocks), -1, dtype=np.int32)
    for sequence, length in enumerate(lengths):
        for block in range(ceil_div(length, KV_BLOCK)):
            tables[sequence, block] = free.pop()
    return tables
