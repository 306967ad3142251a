"""The weights that products of few rows prefetch for the products after them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from bitnet_cuda.next_weights import MOST, NOTHING, Ahead, can_prefetch, next_weights
from bitnet_hal.base import Bound
from bitnet_hal.device import Tuning
from bitnet_hal.families.stream import StreamKernel, StreamLaunch
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.launches import BoundLaunch


@dataclass(frozen=True)
class Buffer:
    address: int
    nbytes: int


def product(
    outs: int, width: int, tile_n: int, *, parts: int = 1, variant: str = "", shares_norm: bool = True, address: int = 0
) -> StreamLaunch:
    """Return a product of `parts` times `outs` weight rows, `tile_n` outputs in a block."""
    spec = CATALOGUE["matmul_ternary_glu" if parts > 1 else "matmul_ternary_block"]
    default = "block_rows" if parts > 1 else "rows"
    private = {"NORMED": 1} if shares_norm else {}
    tuning = Tuning({"TILE_N": tile_n, "TILE_T": 8, "SPLITS": 1}, variant or default, private)
    weights: Any = Buffer(address, parts * outs * width // 4)
    params = {param.name: 0 for param in spec.params} | {"rows": 4, "outs": outs, "width": width}
    kernel = StreamKernel(spec, {}, tuning, None, None)
    return BoundLaunch(kernel, (1, 1, 1), (Bound(weights, 0, weights.nbytes),), spec.pack(params))


def attention() -> StreamLaunch:
    spec = CATALOGUE["rope_attention"]
    kernel = StreamKernel(spec, {}, Tuning(variant="mma", private={"JOINED": 1}), None, None)
    return BoundLaunch(kernel, (1, 1, 1), (), spec.pack({param.name: 1 for param in spec.params}))


DOWN = product(4096, 12288, 32)


def test_a_product_prefetches_the_weights_of_the_next_one() -> None:
    qkv = product(6144, 4096, 64, address=1 << 30)
    assert next_weights([DOWN, qkv, attention()]) == [Ahead(1 << 30, 64 << 10, 64 << 10, 96), NOTHING, NOTHING]


def test_only_blocks_that_start_at_once_gain() -> None:
    ahead, _ = next_weights([DOWN, product(151936, 4096, 192)])
    assert ahead.unit == 192 << 10
    assert ahead.units == 132
    assert MOST - 132 * 16 < ahead.units * ahead.part <= MOST
    assert ahead.part % 16 == 0


@pytest.mark.parametrize(
    "other",
    [
        attention(),
        product(12288, 4096, 96, parts=2),
        product(6144, 4096, 64, variant="group"),
        product(6144, 4096, 64, shares_norm=False),
    ],
)
def test_no_other_launches_prefetch_or_gain(other: StreamLaunch) -> None:
    assert next_weights([DOWN, other]) == [NOTHING, NOTHING]
    assert next_weights([other, DOWN]) == [NOTHING, NOTHING]


def test_kernels_have_arguments_for_it_if_they_share_a_norm() -> None:
    assert can_prefetch(DOWN)
    assert can_prefetch(product(12288, 4096, 96, parts=2))
    assert not can_prefetch(product(6144, 4096, 64, shares_norm=False))
    assert not can_prefetch(attention())
