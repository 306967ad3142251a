"""Encodings made of blocks that each hold their codes and an f16 scale (TQ1_0, TQ2_0, Q2_0 and others)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bitnet_core.errors import ModelError
from bitnet_core.formats.ternary.codes import Bytes, pack, row_chunks, unpack
from bitnet_core.formats.ternary.scales import collapse, per_block, to_half
from bitnet_core.formats.threads import in_threads
from bitnet_core.model.weights import TernaryWeight, padded


def decode_blocks(
    data: Bytes, rows: int, columns: int, block: int, codes_of: Callable[[Bytes], Bytes], scale_at: int
) -> TernaryWeight:
    """Decode a matrix whose rows are blocks of `block` elements.

    codes_of: blocks u8[n, nbytes] -> codes u8[n, block]. scale_at: offset of the f16 scale in the block. Raises
    ModelError for an illegal code.
    """
    if columns % block:
        raise ModelError(f"{columns} columns are not a multiple of {block}")
    raw = data.reshape(rows, -1)
    nbytes = raw.shape[1] * block // columns
    packed = np.empty((rows, padded(columns) // 4), np.uint8)
    scales = np.empty((rows, columns // block), np.float32)
    used = np.empty((rows, columns // block), np.bool_)

    def take(part: slice) -> int:
        blocks = raw[part].reshape(-1, nbytes)
        scale = np.ascontiguousarray(blocks[:, scale_at : scale_at + 2]).view("<f2").astype(np.float32)
        codes = np.where(scale == 0, np.uint8(1), codes_of(blocks))  # a scale of 0 makes every value 0
        packed[part] = pack(codes.reshape(-1, columns))
        scales[part] = scale.reshape(-1, columns // block)
        used[part] = (codes != 1).any(axis=1).reshape(-1, columns // block)
        return int(np.count_nonzero(codes == 3))

    if illegal := sum(in_threads(take, list(row_chunks(rows, columns)))):
        raise illegal_codes(illegal, rows * columns)
    return collapse(rows, columns, packed, scales, used, block)


def illegal_codes(count: int, weights: int) -> ModelError:
    """Build the error for illegal codes."""
    return ModelError(
        f"illegal ternary code 3 (twice the scale) in {count} of {weights} weights read: the data is damaged, or has "
        "four levels (as in Q2_0 files of GSQ), which are not supported"
    )


def encode_blocks(
    weight: TernaryWeight, block: int, nbytes: int, bytes_of: Callable[[Bytes], Bytes], scale_at: int
) -> Bytes:
    """Encode rows of blocks, u8[rows * columns / block * nbytes].

    bytes_of: codes u8[n, block] -> bytes u8[n, nbytes - 2], which surround the f16 scale at `scale_at`. Raises
    ModelError if the weight's shape or scales do not fit.
    """
    if weight.columns % block:
        raise ModelError(f"{weight.columns} columns are not a multiple of {block}")
    blocks = weight.columns // block
    halves = to_half(per_block(weight, block))
    data = np.empty((weight.rows, blocks, nbytes), np.uint8)
    data[:, :, scale_at : scale_at + 2] = halves
    rest = np.delete(np.arange(nbytes), [scale_at, scale_at + 1])
    for part in row_chunks(weight.rows, weight.columns):
        codes = unpack(weight.codes[part], weight.columns).reshape(-1, block)
        data[part, :, rest[0] : rest[-1] + 1] = bytes_of(codes).reshape(-1, blocks, nbytes - 2)
    return data.reshape(-1)
