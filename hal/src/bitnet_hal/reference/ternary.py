"""Ternary matrix products from I2_S blocks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from bitnet_hal.kernels.sizes import SCALE_COLUMNS
from bitnet_hal.kernels.spec import Constants, Params
from bitnet_hal.reference.quantize import F32, Arrays, output_block, sizes
from bitnet_hal.rounding import ceil_div

_CHUNK = 1 << 19
"""Weights that are unpacked at once; their f32 copies fit in the CPU cache."""
_EXACT_WIDTH = 1 << 16
"""Largest width whose f32 sums of 2 * 128 * K / 4 stay below 2^24, so that BLAS computes exact integers."""


def plane_order(q: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """Return q[T, width] as [4, T, width / 4]: plane s holds the columns whose codes are bits 7-2s, 6-2s of the
    bytes."""
    rows, width = q.shape
    return q.reshape(rows, width // 128, 4, 32).transpose(2, 0, 1, 3).reshape(4, rows, width // 4)


def unpack_codes(w: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return the codes u8[N, width] in column order from packed u8[N, width / 4]."""
    outs, packed = w.shape
    planes = np.stack([(w >> (6 - 2 * s)) & 3 for s in range(4)], axis=1).reshape(outs, 4, packed // 32, 32)
    return planes.transpose(0, 2, 1, 3).reshape(outs, packed * 4)


def ternary_dot(w: npt.NDArray[np.uint8], q: npt.NDArray[np.int8]) -> npt.NDArray[np.int32]:
    """Return acc i32[T, N] = sum_k code[n, k] * q[t, k], exact."""
    outs, packed = w.shape
    dtype = np.float32 if packed * 4 <= _EXACT_WIDTH else np.float64
    planes = plane_order(q).astype(dtype)
    acc = np.empty((q.shape[0], outs), dtype=np.int32)
    step = max(1, _CHUNK // packed)
    for first in range(0, outs, step):
        part = w[first : first + step]
        total = (part & 3).astype(dtype) @ planes[3].T
        for s in range(3):
            total += ((part >> (6 - 2 * s)) & 3).astype(dtype) @ planes[s].T
        acc[:, first : first + step] = total.T
    return acc


def _operands(a: Arrays, p: Params) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int8], F32, F32]:
    rows, outs, width = sizes(p, "rows", "outs", "width")
    first, stride = sizes(p, "y_first", "y_stride")
    w = a["w"][: outs * width // 4].reshape(outs, width // 4)
    q = a["q"][: rows * width].reshape(rows, width)
    scale = a["scale"][:rows]
    y = output_block(a["y"], rows, outs, stride, first)
    return w, q, scale, y


def matmul_ternary(a: Arrays, p: Params, c: Constants) -> None:
    """Compute y (+)= (codes . q - qsum) * scale * wscale."""
    w, q, scale, y = _operands(a, p)
    acc = ternary_dot(w, q) - a["qsum"][: q.shape[0], None]
    value = acc.astype(np.float32) * scale[:, None] * a["wscale"][: w.shape[0]]
    y[:] = y + value if c["ADD"] else value


def matmul_ternary_block(a: Arrays, p: Params, c: Constants) -> None:
    """Compute y (+)= sum over groups of wscale * (sum of the group) * scale; SCALE_COLUMNS lie within one weight
    group."""
    w, q, _, y = _operands(a, p)
    rows = q.shape[0]
    outs = w.shape[0]
    width = q.shape[1]
    block = c["BLOCK"]
    part = SCALE_COLUMNS if c["ABLOCK"] else c["BLOCK"]
    wscale = a["wscale"][: outs * ceil_div(width, block)].reshape(outs, -1)
    scale = a["scale"][: rows * (width // part)].reshape(rows, -1) if c["ABLOCK"] else None
    value = np.zeros((rows, outs), dtype=np.float32)
    step = max(1, _CHUNK // width)
    for row in range(0, outs, step):
        signs = unpack_codes(w[row : row + step]).astype(np.float32) - np.float32(1)
        for first in range(0, width, part):
            columns = slice(first, min(width, first + part))
            dot = q[:, columns].astype(np.float32) @ signs[:, columns].T
            dot *= wscale[row : row + step, first // block]
            value[:, row : row + step] += dot if scale is None else dot * scale[:, first // part, None]
    if scale is None:
        value *= a["scale"][:rows, None]
    y[:] = y + value if c["ADD"] else value
