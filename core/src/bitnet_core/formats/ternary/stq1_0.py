"""STQ1_0 of Tencent (Hy-MT; llama.cpp pull request 22836): 256 elements in 42 bytes, of each four exactly one zero.

qs[32] (two 4-bit slots a byte, the low nibble first), sign[8] (a bit for each slot), then an f16 scale. Slot
i = 16 c + g is of elements 64 c + g + 16 p, p = 0..3: not of neighbours. Its pattern is an entry of a table by
(sign << 4 | slot); bits 2 p and 2 p + 1 of the pattern are the code of element p.
"""

from __future__ import annotations

import numpy as np

from bitnet_core.errors import ModelError
from bitnet_core.formats.ternary.blocks import decode_blocks, encode_blocks
from bitnet_core.formats.ternary.codes import Bytes
from bitnet_core.model.weights import TernaryWeight

BLOCK = 256
_PATTERNS = np.frombuffer(
    bytes.fromhex("a9892909a6862606 9a921a126a624a42 012181a1042484a4 1018909840486068"), np.uint8
)
_CODES = (_PATTERNS[:, None] >> np.array([0, 2, 4, 6], np.uint8)) & np.uint8(3)
"""Codes u8[32, 4] of the patterns."""
_NUMBERS = np.full(256, -1, np.int16)
_NUMBERS[_PATTERNS] = np.arange(32)
_NUMBERS[0x55] = 0  # four zeros, in a block whose scale is 0
"""Numbers of the patterns, -1 for four codes that are none: pattern = codes of the lanes, the first in bits 1-0."""
_LEAST = 1e-4
"""Scales below it throughout a tensor are those of the variant with 16-bit integers."""


def codes_of(blocks: Bytes) -> Bytes:
    """Decode blocks u8[n, 42] to codes u8[n, 256]."""
    packed = blocks[:, :32]
    slots = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=2).reshape(-1, 64)
    signs = np.unpackbits(blocks[:, 32:40], axis=1, bitorder="little")
    codes: Bytes = _CODES[slots | signs << np.uint8(4)]
    return codes.reshape(-1, 4, 16, 4).swapaxes(2, 3).reshape(-1, BLOCK)


def decode(data: Bytes, rows: int, columns: int) -> TernaryWeight:
    """Decode the matrix in `data`; every code is legal.

    Raises ModelError for the variant "v2", which has the same size and scales of int16 / 32768 in place of f16: read as
    f16 all of them are tiny.
    """
    scales = np.ascontiguousarray(data.reshape(-1, 42)[:, 40:]).view("<f2").astype(np.float32)
    if np.isfinite(scales).all() and scales.any() and scales.min() >= 0 and scales.max() < _LEAST:
        raise ModelError(
            "is STQ1_0 with scales below 1e-4, as in its variant v2 (integers for scales), which is not supported; get "
            "a file with f16 scales"
        )
    return decode_blocks(data, rows, columns, BLOCK, codes_of, scale_at=40)


def encode(weight: TernaryWeight) -> Bytes:
    """Encode the matrix with scales rounded to f16.

    Raises ModelError if shape or scales do not fit, or if a group of four weights does not have exactly one zero.
    """
    return encode_blocks(weight, BLOCK, 42, _bytes_of, scale_at=40)


def _bytes_of(codes: Bytes) -> Bytes:
    """Encode codes u8[n, 256] as slots and signs u8[n, 40]."""
    lanes = codes.reshape(-1, 4, 4, 16).swapaxes(2, 3).reshape(-1, 64, 4)
    numbers = _NUMBERS[np.bitwise_or.reduce(lanes << np.array([0, 2, 4, 6], np.uint8), axis=2)]
    whole = (codes != 1).any(axis=1, keepdims=True)
    if (numbers < 0).any() or (whole & (lanes == 1).all(axis=2)).any():
        raise ModelError("a group of four weights does not have exactly one zero, as STQ1_0 needs")
    slots = (numbers & 15).astype(np.uint8)
    signs = np.packbits((numbers >> 4).astype(np.uint8), axis=1, bitorder="little")
    return np.concatenate([slots[:, ::2] | slots[:, 1::2] << np.uint8(4), signs], axis=1)
