"""Tensor maps: where the bulk copies of stream.cuh find their boxes, as the last arguments of its kernels."""

from __future__ import annotations

from typing import Any

from bitnet_core.hal.stream import StreamLaunch

from bitnet_cuda.driver import driver
from bitnet_cuda.errors import check


def maps(launch: StreamLaunch) -> list[Any]:
    """Of the launch's weights, its activations, and their scales for 32 columns each; none for other kernels."""
    private = launch.kernel.tuning.private
    if "SPAN_T" not in private:
        return []
    values = launch.kernel.spec.unpack(launch.params)
    rows, outs, width = (int(values[name]) for name in ("rows", "outs", "width"))
    w, _, q, scale, *_ = (bound.buffer.address + bound.offset for bound in launch.bound)
    row, own, span = width // 4, 2 * private["M_TILES"], private["SPAN_T"]  # a lane has `own` neighbouring rows
    dims, steps, box = (row, 8, own, outs // (8 * own)), (own * row, row, 8 * own * row), (32, 8, own)
    return [
        _encoded(w, dims, steps, (*box, private["GROUP"] // 32 - 4), 1),
        _encoded(q, (width, rows), (width,), (128, span), 3),
        _encoded(scale, (width // 8, rows), (width // 8,), (16, span), 0),
    ]


def _encoded(address: int, dims: tuple[int, ...], steps: tuple[int, ...], box: tuple[int, ...], swizzle: int) -> Any:
    """Of bytes; what lies outside reads as zeros. swizzle: 1 for 32 bytes, 3 for 128."""
    api = driver()
    wide, narrow = api.cuuint64_t, api.cuuint32_t
    sizes = [wide(n) for n in dims], [wide(n) for n in steps], [narrow(n) for n in box], [narrow(1)] * len(box)
    plain, ahead = api.CUtensorMapInterleave(0), api.CUtensorMapL2promotion(3)  # 256 bytes of the L2 cache
    how = plain, api.CUtensorMapSwizzle(swizzle), ahead, api.CUtensorMapFloatOOBfill(0)
    return check(api.cuTensorMapEncodeTiled(api.CUtensorMapDataType(0), len(dims), address, *sizes, *how), "launch")[0]
