"""Tensor maps: where the bulk copies of matmul_ternary_stream.cu find their boxes, as the kernel's last arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bitnet_core.hal.stream import StreamLaunch

from bitnet_cuda.driver import driver
from bitnet_cuda.errors import check


def maps(launch: StreamLaunch) -> list[Any]:
    """Of the launch's weights and activations; none where its kernel copies otherwise."""
    private, spec = launch.kernel.tuning.private, launch.kernel.spec
    if "SPAN_T" not in private:
        return []
    values = spec.unpack(launch.params)
    rows, outs, width = (int(values[name]) for name in ("rows", "outs", "width"))
    w, _, q, *_ = (bound.buffer.address + bound.offset for bound in launch.bound)
    own, row = 2 * private["M_TILES"], width // 4  # a lane has `own` neighbouring rows of weights
    dims, steps = (row, 8, own, outs // (8 * own)), (own * row, row, 8 * own * row)
    return [
        _encoded(w, dims, steps, (32, 8, own, private["GROUP"] // 32 - 4), 32),
        _encoded(q, (width, rows), (width,), (128, private["SPAN_T"]), 128),
    ]


def _encoded(address: int, dims: Sequence[int], steps: Sequence[int], box: Sequence[int], swizzle: int) -> Any:
    """Of bytes; what lies outside reads as zeros."""
    api = driver()
    wide, narrow = api.cuuint64_t, api.cuuint32_t
    kind = api.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT8
    whole = api.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE
    order = getattr(api.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzle}B")
    ahead = api.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B
    fill = api.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE
    sizes = [wide(n) for n in dims], [wide(n) for n in steps], [narrow(n) for n in box], [narrow(1)] * len(box)
    return check(api.cuTensorMapEncodeTiled(kind, len(dims), address, *sizes, whole, order, ahead, fill), "launch")[0]
