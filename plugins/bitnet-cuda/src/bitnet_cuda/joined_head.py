"""The split of the rows of x for approximate logits, by the norm before them instead of by each of their blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from bitnet_hal.base import Bound
from bitnet_hal.families.stream import StreamBuffer, StreamKernel, StreamLaunch
from bitnet_hal.plugin import Tuning
from bitnet_hal.rounding import ceil_div

from bitnet_cuda.table_tiles import approx_tile

SPLIT_BYTES = 2 << 20
"""The bytes of the buffer of split rows: 64 rows of 10,800 columns."""


def split_rows(
    launches: Sequence[StreamLaunch],
    variant: Callable[[StreamKernel, Tuning], StreamKernel],
    split: Bound[StreamBuffer],
) -> list[StreamLaunch]:
    """Return the launches with norms that split their rows for the approximate logits after them.

    variant: compiles a kernel with another tuning. Both kernels have the view of the split rows behind their own.
    """
    result: list[StreamLaunch] = []
    for launch in launches:
        if result and _can_split(result[-1], launch):
            norm = result[-1]
            tile = _split_tile(launch)
            span = {"SPLIT_T": tile.private["SPAN_T"]}
            own = replace(norm.kernel.tuning, variant="split", private={**norm.kernel.tuning.private, **span})
            result[-1] = replace(norm, kernel=variant(norm.kernel, own), bound=(*norm.bound, split))
            spec = launch.kernel.spec
            grid = spec.grid(spec.unpack(launch.params), tile.tile)
            logits = variant(launch.kernel, replace(tile, private={**tile.private, "JOINED": 1}))
            result.append(replace(launch, kernel=logits, grid=grid, bound=(*launch.bound, split)))
        else:
            result.append(launch)
    return result


def _can_split(norm: StreamLaunch, logits: StreamLaunch) -> bool:
    """Return whether a launch computes approximate logits of the rows of the norm before it, which fit the buffer."""
    if norm.kernel.spec.name != "rms_norm" or logits.kernel.spec.name != "approx_logits":
        return False
    if logits.kernel.tuning.variant != "stream" or norm.bound[3] != logits.bound[0]:
        return False
    sizes = logits.kernel.spec.unpack(logits.params)
    own = norm.kernel.spec.unpack(norm.params)
    span = _split_tile(logits).private["SPAN_T"]
    rows = span * ceil_div(int(sizes["rows"]), span)
    row_bytes = 3 * 128 * ceil_div(int(sizes["width"]), 128) + 8
    return rows * row_bytes <= SPLIT_BYTES and own["rows"] == sizes["rows"] and own["width"] == sizes["width"]


def _split_tile(logits: StreamLaunch) -> Tuning:
    sizes = logits.kernel.spec.unpack(logits.params)
    return approx_tile(int(sizes["rows"]), int(sizes["outs"]), split=True)
