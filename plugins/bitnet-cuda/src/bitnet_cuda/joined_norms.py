"""Norms that two products of few rows share: the one before the norm stores codes, the one after it computes scales."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace

from bitnet_hal.base import Bound
from bitnet_hal.families.stream import StreamBuffer, StreamKernel, StreamLaunch

SQUARES_BYTES = 256 << 10
"""The bytes of the buffer of sums of squares, one for each group of each row."""
GROUP_SIZE = 32
"""The columns of a group, which has an activation scale."""
BEFORE = (("matmul_ternary_block", "rows"), ("matmul_ternary_block", "tiles"))
"""The products that can store the codes of a norm of their outputs, by kernel and variant."""
AFTER = (*BEFORE, ("matmul_ternary_glu", "block_rows"), ("matmul_ternary_glu", "block_tiles"))
"""The products that can compute the scales."""


def shared_norms(
    launches: Sequence[StreamLaunch],
    variant: Callable[[StreamKernel, dict[str, int]], StreamKernel],
    squares: Bound[StreamBuffer],
) -> list[StreamLaunch]:
    """Return the launches without the norms that the products before and after them share.

    variant: compiles a kernel with further constants. JOINED kernels have the views of gamma, q, scale, qsum and
    squares behind their own, NORMED kernels that of squares.
    """
    result: list[StreamLaunch] = []
    constants: dict[str, int] = {}  # of the product after a norm
    for i, launch in enumerate(launches):
        if constants:
            bound = (*launch.bound, squares)
            result.append(replace(launch, kernel=variant(launch.kernel, constants), bound=bound))
            constants = {}
        elif result and _is_shared(result[-1], launch, launches[i + 1 :]):
            before = result[-1]
            bound = (*before.bound, *launch.bound[1:], squares)
            result[-1] = replace(before, kernel=variant(before.kernel, {"JOINED": 1}), bound=bound)
            eps = struct.pack("<f", launch.kernel.spec.unpack(launch.params)["eps"])
            constants = {"NORMED": 1, "EPS_BITS": int.from_bytes(eps, "little")}
        else:
            result.append(launch)
    return result


def _is_shared(before: StreamLaunch, norm: StreamLaunch, rest: Sequence[StreamLaunch]) -> bool:
    """Return whether `norm` is a norm that the product before it and the first launch of `rest` can share."""
    kernel = norm.kernel
    if kernel.spec.name != "rms_norm_quantize" or kernel.constants != {"NORM": 1, "ABLOCK": GROUP_SIZE}:
        return False
    if not rest or _kind(before) not in BEFORE or _kind(rest[0]) not in AFTER:
        return False
    outputs = norm.bound[2:]
    return _stores(before, norm) and rest[0].bound[2:5] == outputs and _is_last(outputs, rest[1:])


def _stores(before: StreamLaunch, norm: StreamLaunch) -> bool:
    """Return whether a product's outputs are the rows of a norm, a block has whole groups of them, and none of what
    the norm writes is read by the product, whose blocks end at different times.
    """
    sizes = norm.kernel.spec.unpack(norm.params)
    own = before.kernel.spec.unpack(before.params)
    tile = before.kernel.tuning.tile
    rows = sizes["rows"]
    width = sizes["width"]
    if before.bound[5] != norm.bound[0] or own["rows"] != rows or not own["outs"] == own["y_stride"] == width:
        return False
    whole = tile["TILE_N"] % (GROUP_SIZE * tile["SPLITS"]) == 0 and width == sizes["stride"]
    fits = 4 * rows * width <= GROUP_SIZE * SQUARES_BYTES
    read = {view.buffer for view in before.bound}
    return whole and fits and not any(view.buffer in read for view in norm.bound[2:])


def _kind(launch: StreamLaunch) -> tuple[str, str]:
    return launch.kernel.spec.name, launch.kernel.tuning.variant


def _is_last(outputs: Sequence[Bound[StreamBuffer]], rest: Sequence[StreamLaunch]) -> bool:
    """Return whether the buffer of scales, the second of `outputs`, is written before another launch reads it."""
    for launch in rest:
        for binding, view in zip(launch.kernel.spec.bindings, launch.bound, strict=False):
            if view.buffer is outputs[1].buffer:
                return binding.access == "w"
    return True
