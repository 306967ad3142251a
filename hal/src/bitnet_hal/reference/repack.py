"""Reference of the kernel that converts the codes of a model file."""

from __future__ import annotations

import numpy as np
from bitnet_hal.kernels.repack import block_bytes
from bitnet_hal.kernels.spec import Constants, Params
from bitnet_hal.reference.quantize import Arrays, sizes


def repack_q2_0(a: Arrays, p: Params, c: Constants) -> None:
    """Convert blocks of Q2_0 to ternary weights."""
    rows, columns, width, first = sizes(p, "rows", "columns", "width", "first")
    nbytes = block_bytes(c["BLOCK"])
    blocks = a["blocks"][: rows * columns // c["BLOCK"] * nbytes].reshape(-1, nbytes)
    codes = blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    codes = codes.reshape(len(blocks), -1)
    zero = blocks[:, :2].copy().view("<f2") == 0
    if (~zero[:, 0] & ((codes == 3).any(axis=1) | (codes == 1).all(axis=1))).any():
        a["odd"][0] = 1
    codes = np.where(zero, np.uint8(1), codes).reshape(rows, columns)
    planes = np.pad(codes, ((0, 0), (0, width - columns)), constant_values=1).reshape(rows, -1, 4, 32)
    packed = planes[:, :, 0] << 6 | planes[:, :, 1] << 4 | planes[:, :, 2] << 2 | planes[:, :, 3]
    a["w"][first * width // 4 : (first + rows) * width // 4] = packed.reshape(-1)
