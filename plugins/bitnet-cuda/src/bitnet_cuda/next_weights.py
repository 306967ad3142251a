"""The weights that a product of few rows with block scales prefetches for the product after it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from bitnet_hal.families.stream import StreamLaunch

from bitnet_cuda.limits import MULTIPROCESSORS

PRODUCTS = (("matmul_ternary_block", "rows"), ("matmul_ternary_glu", "block_rows"))
"""The products of block_rows.cuh, by kernel and variant."""
MOST = 6450 << 10
"""The maximum bytes to prefetch: a little more than the weights of the queries, keys and values of Bonsai 8B."""


class Ahead(NamedTuple):
    """The weights that the blocks of a product read first: `part` bytes at the start of each of `units` units of `unit`
    bytes."""

    address: int
    unit: int
    part: int
    units: int


NOTHING = Ahead(0, 0, 0, 0)


def can_prefetch(launch: StreamLaunch) -> bool:
    """Return whether the last arguments of a launch's kernel are those of `Ahead` (ahead.cuh)."""
    tuning = launch.kernel.tuning
    shares_norm = "JOINED" in tuning.private or "NORMED" in tuning.private
    return shares_norm and (launch.kernel.spec.name, tuning.variant) in PRODUCTS


def next_weights(launches: Sequence[StreamLaunch]) -> list[Ahead]:
    """Return for each launch what it prefetches: the weights of the launch right after it, if both are products that
    can prefetch and have no gate and up projection, whose weights are too many or needed too soon.
    """
    result = [NOTHING] * len(launches)
    for i, (launch, after) in enumerate(pairwise(launches)):
        if all(can_prefetch(one) and one.kernel.spec.name == "matmul_ternary_block" for one in (launch, after)):
            result[i] = _first_weights(after)
    return result


def _first_weights(product: StreamLaunch) -> Ahead:
    """Return the first weights of each block of a product, as many for all of them, of those that start at once."""
    width = product.kernel.spec.unpack(product.params)["width"]
    weights = product.bound[0]
    unit = product.kernel.tuning.tile["TILE_N"] * int(width) // 4
    units = min(weights.nbytes // unit, MULTIPROCESSORS)
    part = min(unit, MOST // max(1, units)) // 16 * 16
    return Ahead(weights.buffer.address + weights.offset, unit, part, units)
