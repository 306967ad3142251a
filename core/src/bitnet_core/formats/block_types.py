"""Decoders of ggml's block types with 2 to 5 bits per weight, which embeddings and heads may have.

Each decodes blocks u8[n, block bytes] to values f32[n, elements]. Layouts: ggml-common.h of llama.cpp.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bitnet_core.formats.ternary.codes import Bytes

Floats = npt.NDArray[np.float32]

_PAIRS = np.array([0, 2, 4, 6], np.uint8).reshape(4, 1)
_BITS = np.arange(8, dtype=np.uint8).reshape(8, 1)
_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
_FP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)  # e2m1, doubled


def half(blocks: Bytes, at: int) -> Floats:
    """Return the f16 number at an offset of each block, f32[n, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """Return the low nibbles of all bytes, then the high ones."""
    return np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=1)


def _fifth_bits(packed: Bytes) -> Bytes:
    bits: Bytes = np.unpackbits(packed, axis=1, bitorder="little")
    return bits << np.uint8(4)


def q4_0(blocks: Bytes) -> Floats:
    """Decode f16 d and 16 bytes of nibbles: d (q - 8)."""
    return half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def q4_1(blocks: Bytes) -> Floats:
    """Decode f16 d, f16 m and 16 bytes of nibbles: d q + m."""
    return half(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + half(blocks, 2)


def q5_0(blocks: Bytes) -> Floats:
    """Decode f16 d, 32 fifth bits and 16 bytes of nibbles: d (q - 16)."""
    codes = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return half(blocks, 0) * (codes.astype(np.float32) - 16)


def q5_1(blocks: Bytes) -> Floats:
    """Decode f16 d, f16 m, 32 fifth bits and 16 bytes of nibbles: d q + m."""
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return half(blocks, 0) * codes.astype(np.float32) + half(blocks, 2)


def q2_k(blocks: Bytes) -> Floats:
    """Decode 16 bytes of a scale and a minimum (four bits each), 64 bytes of codes, f16 d and dmin."""
    scales = half(blocks, 80) * (blocks[:, :16] & np.uint8(15)).astype(np.float32)
    minima = half(blocks, 82) * (blocks[:, :16] >> np.uint8(4)).astype(np.float32)
    codes = (blocks[:, 16:80].reshape(-1, 2, 1, 32) >> _PAIRS) & np.uint8(3)
    values = scales[:, :, None] * codes.reshape(-1, 16, 16).astype(np.float32) - minima[:, :, None]
    return values.reshape(-1, 256)


def q3_k(blocks: Bytes) -> Floats:
    """Decode 32 bytes of third bits (0: minus 4), 64 bytes of codes, 16 scales of six bits in 12 bytes, and f16 d."""
    low, high = blocks[:, 96:104], blocks[:, 104:108]
    fours = _nibbles(low)
    twos = ((high[:, None, :] >> _PAIRS) & np.uint8(3)).reshape(-1, 16)
    scales = (fours | twos << np.uint8(4)).astype(np.float32) - 32
    codes = (blocks[:, 32:96].reshape(-1, 2, 1, 32) >> _PAIRS) & np.uint8(3)
    thirds = (blocks[:, :32].reshape(-1, 1, 32) >> _BITS) & np.uint8(1)
    values = codes.reshape(-1, 16, 16).astype(np.float32) - 4 + 4 * thirds.reshape(-1, 16, 16).astype(np.float32)
    return ((half(blocks, 108) * scales)[:, :, None] * values).reshape(-1, 256)


def _scales_and_minima(blocks: Bytes) -> tuple[Floats, Floats]:
    """Return the eight scales and minima of Q4_K and Q5_K: six bits each in bytes 4 to 15, times f16 d and dmin."""
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6) << 4], axis=1)
    minima = np.concatenate([second & 63, (third >> 4) | (second >> 6) << 4], axis=1)
    return half(blocks, 0) * scales, half(blocks, 2) * minima


def q4_k(blocks: Bytes) -> Floats:
    """Decode f16 d and dmin, scales and minima, and 128 bytes of nibbles in four groups of 64 weights."""
    steps, offsets = _scales_and_minima(blocks)
    groups = blocks[:, 16:].reshape(-1, 4, 1, 32)
    codes = np.concatenate([groups & 15, groups >> 4], axis=2).reshape(-1, 8, 32)
    values: Floats = steps[:, :, None] * codes - offsets[:, :, None]
    return values.reshape(-1, 256)


def q5_k(blocks: Bytes) -> Floats:
    """Decode Q4_K with 32 bytes of fifth bits before the nibbles: bit g of byte l is of weight 32 g + l."""
    steps, offsets = _scales_and_minima(blocks)
    groups = blocks[:, 48:].reshape(-1, 4, 1, 32)
    codes = np.concatenate([groups & 15, groups >> 4], axis=2).reshape(-1, 8, 32)
    fifth = (blocks[:, 16:48].reshape(-1, 1, 32) >> _BITS) & np.uint8(1)
    values: Floats = steps[:, :, None] * (codes | fifth << np.uint8(4)) - offsets[:, :, None]
    return values.reshape(-1, 256)


def iq4_nl(blocks: Bytes) -> Floats:
    """Decode f16 d and 16 bytes of nibbles that index a table."""
    values: Floats = half(blocks, 0) * _IQ4[_nibbles(blocks[:, 2:])]
    return values


def iq4_xs(blocks: Bytes) -> Floats:
    """Decode f16 d, eight scales of six bits (high pairs in a word, low nibbles in four bytes) and IQ4_NL's nibbles."""
    high = np.ascontiguousarray(blocks[:, 2:4]).view("<u2").astype(np.uint32) >> np.arange(0, 16, 2, dtype=np.uint32)
    low = np.stack([blocks[:, 4:8] & np.uint8(15), blocks[:, 4:8] >> np.uint8(4)], axis=2).reshape(-1, 8)
    scales = half(blocks, 0) * ((low | (high & 3) << 4).astype(np.float32) - 32)
    groups = blocks[:, 8:].reshape(-1, 16)
    values: Floats = scales[:, :, None] * _IQ4[_nibbles(groups)].reshape(-1, 8, 32)
    return values.reshape(-1, 256)


def mxfp4(blocks: Bytes) -> Floats:
    """Decode an exponent e8m0 and 16 bytes of e2m1 nibbles."""
    scale = np.ldexp(np.float32(0.5), blocks[:, :1].astype(np.int32) - 127)
    values: Floats = scale.astype(np.float32) * _FP4[_nibbles(blocks[:, 1:])]
    return values
