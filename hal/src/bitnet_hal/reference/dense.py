"""Dense tables: decoding, embed_rows and matmul_dense."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from bitnet_hal.kernels.catalogue import DENSE_TYPES
from bitnet_hal.kernels.spec import Constants, Params
from bitnet_hal.kernels.types import DENSE_BLOCKS, DenseType
from bitnet_hal.reference.quantize import F32, Arrays, output_block, sizes
from bitnet_hal.reference.ternary import unpack_codes
from bitnet_hal.rounding import ceil_div

U8 = npt.NDArray[np.uint8]
_CHUNK = 1 << 20
"""Table elements that are decoded at once."""


def decode_table(table: U8, dtype: DenseType) -> F32:
    """Return f32[N, K] from a table u8[N, row_bytes] of one dense type; GGUF defines the block formats."""
    rows = table.shape[0]
    table = np.ascontiguousarray(table)
    if dtype == "f32":
        return table.view("<f4")
    if dtype == "f16":
        return table.view("<f2").astype(np.float32)
    if dtype == "bf16":
        return (table.view("<u2").astype(np.uint32) << 16).view(np.float32)
    blocks = table.reshape(rows, -1, DENSE_BLOCKS[dtype][1])
    if dtype == "q8_0":
        d = blocks[:, :, :2].copy().view("<f2").astype(np.float32)
        return (blocks[:, :, 2:].view(np.int8) * d).reshape(rows, -1)
    if dtype == "q6_K":
        return _decode_q6_k(blocks)
    raise ValueError(f"no kernel reads {dtype}")


def _decode_q6_k(blocks: U8) -> F32:
    """Decode blocks of 256 elements in 210 bytes: ql[128], qh[64], i8 scales[16], f16 d; value = d * scale * (q -
    32)."""
    rows, n = blocks.shape[:2]
    low = blocks[:, :, :128].reshape(rows, n, 2, 2, 32)
    high = blocks[:, :, 128:192].reshape(rows, n, 2, 32)
    q = np.empty((rows, n, 2, 4, 32), dtype=np.int8)
    for quarter in range(4):
        byte = low[:, :, :, quarter % 2]
        bits = (byte & 15 if quarter < 2 else byte >> 4) | ((high >> (2 * quarter)) & 3) << 4
        q[:, :, :, quarter] = bits.astype(np.int8) - np.int8(32)
    scales = blocks[:, :, 192:208].view(np.int8).astype(np.float32)
    d = blocks[:, :, 208:].copy().view("<f2").astype(np.float32)
    return ((d * scales)[:, :, :, None] * q.reshape(rows, n, 16, 16)).astype(np.float32).reshape(rows, n * 256)


def _table(data: npt.NDArray[Any], rows: int, columns: int, dtype: DenseType) -> U8:
    elements, nbytes = DENSE_BLOCKS[dtype]
    row_bytes = columns // elements * nbytes
    return data[: rows * row_bytes].reshape(rows, row_bytes)


def embed_rows(a: Arrays, p: Params, c: Constants) -> None:
    """Write x[t] = table[token - first] for the tokens in this part of the table."""
    rows, hidden, first, count = sizes(p, "rows", "hidden", "first", "count")
    dtype = DENSE_TYPES[c["DTYPE"]]
    table = _table(a["table"], count, hidden, dtype)
    tokens = a["step"][: rows * 4].reshape(rows, 4)[:, 0].astype(np.int64) - first
    mine = np.flatnonzero((tokens >= 0) & (tokens < count))
    a["x"][: rows * hidden].reshape(rows, hidden)[mine] = decode_table(table[tokens[mine]], dtype)


def embed_rows_ternary(a: Arrays, p: Params, c: Constants) -> None:
    """Write x[t] = (codes - 1) * scales for the tokens in this part of the table."""
    rows, hidden, width, first, count = sizes(p, "rows", "hidden", "width", "first", "count")
    table = a["w"][: count * width // 4].reshape(count, width // 4)
    wscale = a["wscale"][: count * ceil_div(width, c["BLOCK"])].reshape(count, -1)
    tokens = a["step"][: rows * 4].reshape(rows, 4)[:, 0].astype(np.int64) - first
    mine = np.flatnonzero((tokens >= 0) & (tokens < count))
    signs = unpack_codes(table[tokens[mine]]).astype(np.float32) - np.float32(1)
    scales = np.repeat(wscale[tokens[mine]], c["BLOCK"], axis=1)[:, :width]
    a["x"][: rows * hidden].reshape(rows, hidden)[mine] = (signs * scales)[:, :hidden]


def matmul_dense(a: Arrays, p: Params, c: Constants) -> None:
    """Compute y[l, y_first + n] = x[l] . w[n], one row at a time, as BLAS sums products of several in another order."""
    rows, outs, width, stride, first = sizes(p, "rows", "outs", "width", "y_stride", "y_first")
    dtype = DENSE_TYPES[c["DTYPE"]]
    w = _table(a["w"], outs, width, dtype)
    x = a["x"][: rows * width].reshape(rows, width)
    y = output_block(a["y"], rows, outs, stride, first)
    step = max(1, _CHUNK // width)
    for row in range(0, outs, step):
        part = decode_table(w[row : row + step], dtype)
        for one, out in zip(x, y[:, row : row + step], strict=True):
            out[:] = part @ one
