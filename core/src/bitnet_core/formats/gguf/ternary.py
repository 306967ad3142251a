"""Decode the bytes of a GGUF tensor of any ternary type to a TernaryWeight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError
from bitnet_core.formats import dense
from bitnet_core.formats.gguf.types import I2_S_TAIL, TensorType
from bitnet_core.formats.ternary import floats, i2_s, iq_bn, ptq1_0, q1_0, q2_0, stq1_0, tl1, tl2, tq1_0, tq2_0
from bitnet_core.formats.ternary.codes import Bytes, check_legal
from bitnet_core.formats.ternary.tiles import TL1_TILES, TL2_TILES, Tiles, tile_for
from bitnet_core.formats.weight_checks import nonzero_share
from bitnet_core.model.weights import TernaryWeight
from bitnet_core.options.loading import Layout

_Q2_0 = {"Q2_0": 64, "Q2_0_128": 128, "PQ2_0": 128}
"""Columns of a block of the types that hold Q2_0."""

_DECODERS: Mapping[str, Callable[[Bytes, int, int], TernaryWeight]] = {
    "TQ1_0": tq1_0.decode,
    "TQ2_0": tq2_0.decode,
    **{name: partial(q2_0.decode, block=block) for name, block in _Q2_0.items()},
    "PTQ1_0": ptq1_0.decode,
    "Q1_0": q1_0.decode,
    "STQ1_0": stq1_0.decode,
    "IQ1_BN": iq_bn.decode_iq1_bn,
    "IQ2_BN": iq_bn.decode_iq2_bn,
    "IQ2_BN_R4": iq_bn.decode_iq2_bn_r4,
}

GROUPED = frozenset(_DECODERS)
"""Types that an embedding table or a head may have as well as a matrix."""

_SAMPLE = 1 << 16
"""Elements of a matrix that `sample` checks."""

_UNIT = 4096
"""Bytes of I2_S codes that are read together: one page of the file."""


def decode(
    data: Bytes,
    dtype: str,
    rows: int,
    columns: int,
    layout: Layout = "A",
    tiles: Tiles | None = None,
    quantize: bool = False,
    stored: bool = False,
) -> TernaryWeight:
    """Decode W[rows, columns] from the bytes of a tensor of type `dtype` ("I2_S", "TQ2_0", "F16").

    layout: of I2_S. tiles: of TL1 and TL2 matrices whose tile is not known by the shape. quantize: floats may be master
    weights; otherwise they must be ternary already. stored: leave the codes of Q2_0 in their blocks. Raises ModelError
    if the bytes do not hold a ternary matrix.
    """
    if stored and dtype in _Q2_0:
        return q2_0.stored(data, rows, columns, _Q2_0[dtype])
    if dtype == "I2_S":
        return i2_s.decode(data, rows, columns, layout)
    if dtype == "TL1":
        return tl1.decode(data, rows, columns, tiles)
    if dtype == "TL2":
        return tl2.decode(data, rows, columns, tiles)
    if dtype in _DECODERS:
        return _DECODERS[dtype](data, rows, columns)
    if dtype in ("F32", "F16", "BF16"):
        raw = data.reshape(rows, -1)

        def values_of(part: slice) -> npt.NDArray[np.float32]:
            return dense.decode(raw[part], dense.KERNEL_TYPES[dtype], columns)

        if quantize and not floats.is_ternary(rows, columns, values_of):
            return floats.absmean(rows, columns, values_of)
        return floats.exact(rows, columns, values_of)
    raise ModelError(f"has type {dtype}, which holds no ternary weights: not a 1.58-bit model, or quantized again")


def sample(
    data: Bytes, kind: TensorType, rows: int, columns: int, tiles: Tiles | None = None, quantize: bool = False
) -> tuple[npt.NDArray[np.float32], int, float | None]:
    """Return scales, columns per scale (0: the row has one) and the share of non-zero codes of some rows; the share is
    None if the type scatters rows over the tensor.

    Raises ModelError if those rows are unsound, or if the tile of a TL1 or TL2 matrix is not known.
    """
    if kind.name in ("I2_S", "TL1", "TL2"):
        scale = data[-I2_S_TAIL:][:4].view("<f4").astype(np.float32)
        if kind.name != "I2_S":
            tile_for(kind.name, rows, columns, TL1_TILES if kind.name == "TL1" else TL2_TILES, tiles)
            return scale, 0, None
        codes = _spread(data[:-I2_S_TAIL], (data.size - I2_S_TAIL) // _UNIT, _SAMPLE // 4 // _UNIT)
        check_legal(codes)
        return scale, 0, nonzero_share(codes, codes.size * 4)
    groups = rows // kind.row_group
    picked = _spread(data, groups, max(_SAMPLE // columns // kind.row_group, 1))
    some = picked.size * rows // data.size
    weight = decode(picked, kind.name, some, columns, quantize=quantize)
    return weight.scales, weight.block, nonzero_share(weight.codes, some * columns)


def _spread(data: Bytes, parts: int, wanted: int) -> Bytes:
    """Return about `wanted` of the `parts` equal parts of the data, evenly spread and concatenated."""
    if parts <= wanted:
        return data
    whole = data[: data.size // parts * parts].reshape(parts, -1)
    return whole[:: parts // wanted].reshape(-1)
