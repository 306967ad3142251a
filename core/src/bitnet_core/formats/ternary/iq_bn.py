"""IQ1_BN, IQ2_BN and IQ2_BN_R4 of ik_llama.cpp: a scale per row, then blocks of 64 columns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from bitnet_core.formats.ternary.base3 import DIGITS
from bitnet_core.formats.ternary.codes import Bytes, check_legal, pack, row_chunks
from bitnet_core.formats.ternary.scales import collapse
from bitnet_core.model.weights import TernaryWeight, padded

_SHIFTS = np.array([0, 2, 4, 6], np.uint8)


def decode_iq1_bn(data: Bytes, rows: int, columns: int) -> TernaryWeight:
    """Decode rows of an f16 scale and 13-byte blocks.

    In group g (0..3) of 16 elements, bytes 3g..3g+2 carry five elements each, the first as the least significant digit;
    the last element is digit g of byte 12.
    """
    raw = data.reshape(rows, -1)
    return _from_rows(rows, columns, raw[:, 2:], _halves(raw[:, :2]), _iq1_codes)


def decode_iq2_bn(data: Bytes, rows: int, columns: int) -> TernaryWeight:
    """Decode rows of an f32 scale and 16-byte blocks; byte j holds elements j (bits 1-0), 16+j, 32+j and 48+j.

    Raises ModelError for an illegal code.
    """
    raw = data.reshape(rows, -1)
    codes = raw[:, 4:]
    check_legal(np.ascontiguousarray(codes).reshape(-1))
    return _from_rows(rows, columns, codes, _singles(raw[:, :4]), _iq2_codes)


def decode_iq2_bn_r4(data: Bytes, rows: int, columns: int) -> TernaryWeight:
    """Decode groups of four rows: four f32 scales, then 64 bytes per 64 columns; byte 16 l + 4 k + i holds elements 16
    l + 4 s + i of row k in bits 2 s.

    Raises ModelError for an illegal code.
    """
    groups = data.reshape(rows // 4, -1)
    scales = _singles(groups[:, :16].reshape(rows, 4))
    blocks = groups[:, 16:].reshape(rows // 4, columns // 64, 4, 4, 4)  # [group, block, l, k, i]
    check_legal(np.ascontiguousarray(groups[:, 16:]).reshape(-1))
    by_row = blocks.transpose(0, 3, 1, 2, 4).reshape(rows, columns // 4)
    return _from_rows(rows, columns, by_row, scales, _r4_codes)


def _halves(raw: Bytes) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def _singles(raw: Bytes) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(raw).view("<f4").astype(np.float32)


def _iq1_codes(raw: Bytes) -> Bytes:
    """Decode u8[n, 13 * blocks] to codes u8[n, 64 * blocks]."""
    digits = DIGITS[raw.reshape(-1, 13)][:, :, ::-1]  # least significant first
    codes = np.empty((len(digits), 4, 16), np.uint8)
    codes[:, :, :15] = digits[:, :12].reshape(-1, 4, 15)
    codes[:, :, 15] = digits[:, 12, :4]
    return codes.reshape(len(raw), -1)


def _iq2_codes(raw: Bytes) -> Bytes:
    codes: Bytes = (raw.reshape(-1, 1, 16) >> _SHIFTS.reshape(4, 1)) & np.uint8(3)
    return codes.reshape(len(raw), -1)


def _r4_codes(raw: Bytes) -> Bytes:
    codes: Bytes = (raw.reshape(-1, 1, 4) >> _SHIFTS.reshape(4, 1)) & np.uint8(3)
    return codes.reshape(len(raw), -1)


def _from_rows(
    rows: int, columns: int, raw: Bytes, scales: npt.NDArray[np.float32], codes_of: Callable[[Bytes], Bytes]
) -> TernaryWeight:
    packed = np.empty((rows, padded(columns) // 4), np.uint8)
    used = np.empty((rows, 1), np.bool_)
    for part in row_chunks(rows, columns):
        codes = np.where(scales[part] == 0, np.uint8(1), codes_of(raw[part]))
        packed[part] = pack(codes)
        used[part] = (codes != 1).any(axis=1, keepdims=True)
    return collapse(rows, columns, packed, scales, used, columns)
