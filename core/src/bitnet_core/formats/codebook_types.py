"""Decoders of ggml's IQ2 and IQ3 types, whose groups of 8 or 4 weights are entries of a codebook times signs.

Each decodes blocks u8[n, block bytes] of 256 elements to f32[n, 256]. Layouts: ggml-common.h of llama.cpp.
"""

from __future__ import annotations

from base64 import b85decode
from functools import cache

import numpy as np
import numpy.typing as npt
from bitnet_hal.driver.toml_tables import table

from bitnet_core.formats.ternary.codes import Bytes

Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]

_BITS = np.arange(8, dtype=np.uint8)
_SIGN_SHIFTS = np.array([0, 7, 14, 21], np.uint32)
_PAIRS = np.array([0, 2, 4, 6], np.uint8)


@cache
def _codebook(name: str) -> Floats:
    """Return the entries of a codebook, f32[entries, weights]."""
    book = table(__file__, "codebooks.toml")[name]
    packed = np.frombuffer(b85decode(book["packed"].replace("\n", "")), np.uint8)
    levels = np.array(book["levels"], np.float32)
    bits = book["bits"]
    streams = np.unpackbits(packed, bitorder="little").reshape(-1, bits) << _BITS[:bits]
    entries: Floats = levels[streams.sum(axis=1, dtype=np.uint8)].reshape(-1, book["weights"])
    return entries


def _half(blocks: Bytes) -> Floats:
    """Return the f16 scale at the start of each block, f32[n, 1]."""
    return np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)


def _words(blocks: Bytes, dtype: str) -> Words:
    return np.ascontiguousarray(blocks).view(dtype).astype(np.uint32)


def _signs(masks: Bytes) -> Floats:
    """Return 1 or -1 for each bit of masks u8[n, m]: f32[n, 8 m]."""
    bits = (masks[:, :, None] >> _BITS) & np.uint8(1)
    return (1 - 2 * bits.astype(np.float32)).reshape(len(masks), -1)


def _seven_signs(codes: Words) -> Floats:
    """Return the signs of groups of eight from codes of seven bits; the eighth sign makes their number even."""
    low = codes.astype(np.uint8) & np.uint8(127)
    parity = np.bitwise_xor.reduce((low[:, :, None] >> _BITS[:7]) & np.uint8(1), axis=2)
    return _signs(low | parity << np.uint8(7))


def _nibbles(packed: Bytes) -> Floats:
    """Return the low, then the high nibble of each byte as numbers."""
    pairs = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=2)
    return pairs.reshape(len(packed), -1).astype(np.float32)


def _scaled(scales: Floats, entries: Floats, signs: Floats) -> Floats:
    """Multiply the entries by signs and by scales f32[n, m], each of 256 / m weights."""
    n = len(scales)
    values = (entries.reshape(n, -1) * signs).reshape(n, scales.shape[1], -1)
    return (scales[:, :, None] * values).reshape(n, -1)


def iq2_xxs(blocks: Bytes) -> Floats:
    """Decode f16 d and, for each 32 weights, four indices u8 and a word of four sign codes and a scale of four bits."""
    words = _words(blocks[:, 2:], "<u4").reshape(len(blocks), 8, 2)
    indices = np.ascontiguousarray(blocks[:, 2:]).reshape(len(blocks), 8, 8)[:, :, :4]
    scales = _half(blocks) * (np.float32(0.5) + (words[:, :, 1] >> 28).astype(np.float32)) * np.float32(0.25)
    codes = words[:, :, 1, None] >> _SIGN_SHIFTS
    return _scaled(scales, _codebook("IQ2_XXS")[indices], _seven_signs(codes.reshape(len(blocks), -1)))


def iq2_xs(blocks: Bytes) -> Floats:
    """Decode f16 d, 32 words of an index (9 bits) and a sign code, and scales of four bits for 16 weights."""
    words = _words(blocks[:, 2:66], "<u2")
    scales = _half(blocks) * (np.float32(0.5) + _nibbles(blocks[:, 66:])) * np.float32(0.25)
    return _scaled(scales, _codebook("IQ2_XS")[words & 511], _seven_signs(words >> np.uint32(9)))


def iq2_s(blocks: Bytes) -> Floats:
    """Decode f16 d, qs[32], signs[32], high index bits qh[8], and scales of four bits for 16 weights."""
    high = (blocks[:, 66:74, None] >> _PAIRS) & np.uint8(3)
    indices = blocks[:, 2:34].astype(np.uint16) | high.reshape(len(blocks), -1).astype(np.uint16) << np.uint16(8)
    scales = _half(blocks) * (np.float32(0.5) + _nibbles(blocks[:, 74:])) * np.float32(0.25)
    return _scaled(scales, _codebook("IQ2_S")[indices], _signs(blocks[:, 34:66]))


def iq3_xxs(blocks: Bytes) -> Floats:
    """Decode f16 d, qs[64], and for each 32 weights a word of four sign codes and a scale of four bits."""
    words = _words(blocks[:, 66:], "<u4")
    scales = _half(blocks) * (np.float32(0.5) + (words >> 28).astype(np.float32)) * np.float32(0.5)
    codes = (words[:, :, None] >> _SIGN_SHIFTS).reshape(len(blocks), -1)
    return _scaled(scales, _codebook("IQ3_XXS")[blocks[:, 2:66]], _seven_signs(codes))


def iq3_s(blocks: Bytes) -> Floats:
    """Decode f16 d, qs[64], ninth index bits qh[8], signs[32], and odd scales of four bits for 32 weights."""
    high = ((blocks[:, 66:74, None] >> _BITS) & np.uint8(1)).reshape(len(blocks), -1)
    indices = blocks[:, 2:66].astype(np.uint16) | high.astype(np.uint16) << np.uint16(8)
    scales = _half(blocks) * (1 + 2 * _nibbles(blocks[:, 106:]))
    return _scaled(scales, _codebook("IQ3_S")[indices], _signs(blocks[:, 74:106]))
