"""Five ternary digits in a byte: byte = ceil(256 * T / 243), T the base-3 number of the digits.

Digit n (0 the most significant) is the integer part of 3 * frac(byte * 3^n / 256).
"""

from __future__ import annotations

import numpy as np

from bitnet_core.formats.ternary.codes import Bytes

_POWERS = np.array([1, 3, 9, 27, 81], np.uint8)

DIGITS: Bytes = ((np.arange(256, dtype=np.uint8)[:, None] * _POWERS).astype(np.uint16) * 3 >> 8).astype(np.uint8)
"""The five digits of every byte, u8[256, 5], most significant first."""


def to_bytes(digits: Bytes) -> Bytes:
    """Pack digits u8[..., 5], most significant first, into bytes u8[...]."""
    number = (digits.astype(np.uint16) * _POWERS[::-1]).sum(axis=-1, dtype=np.uint16)
    scaled: Bytes = ((number.astype(np.uint32) * 256 + 242) // 243).astype(np.uint8)
    return scaled
