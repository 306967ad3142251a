"""Which norms split their rows for the approximate logits after them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from bitnet_cuda import tuning
from bitnet_cuda.joined_head import SPLIT_BYTES, split_rows
from bitnet_cuda.limits import MOST_SHARED
from bitnet_cuda.tensor_maps import COPYING_CONSTANTS
from bitnet_hal.device import Tuning
from bitnet_hal.families.stream import StreamKernel, StreamLaunch
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.launches import Bound, BoundLaunch


class Buffer:
    """A buffer that is hashable by identity, like the device's."""


def view() -> Any:
    return Bound(Buffer(), 0, 64)


SPLIT: Any = Bound(Buffer(), 0, SPLIT_BYTES)
NORMED = view()


def made(name: str, sizes: dict[str, int], *views: Any) -> StreamLaunch:
    """Return a launch with the plugin's tuning; bindings that `views` has not get separate buffers."""
    spec = CATALOGUE[name]
    params = {param.name: sizes.get(param.name, 0) for param in spec.params}
    chosen = tuning.select_tuning(spec, {}, params, tensor_cores=True, wgmma=True)
    bound = [*views, *(view() for _ in spec.bindings[len(views) :])]
    grid = spec.grid(params, chosen.tile)
    return BoundLaunch(StreamKernel(spec, {}, chosen, None, None), grid, tuple(bound), spec.pack(params))


def launches(rows: int, norm_rows: int = 0, width: int = 2560, x: Any = NORMED) -> list[StreamLaunch]:
    sizes = {"rows": rows, "outs": 128256, "width": width, "stride": 128256}
    norm = made("rms_norm", sizes | {"rows": norm_rows or rows}, view(), view(), view(), NORMED)
    return [norm, made("approx_logits", sizes, x)]


def split(before: list[StreamLaunch]) -> list[StreamLaunch]:
    def variant(kernel: StreamKernel, tuning: Tuning) -> StreamKernel:
        return replace(kernel, tuning=tuning)

    return split_rows(before, variant, SPLIT)


@pytest.mark.parametrize("rows", [2, 8, 9, 16, 17, 32, 33, 64])
def test_a_norm_splits_rows_for_the_logits_after_it(rows: int) -> None:
    norm, logits = launches(rows)
    first, second = split([norm, logits])
    assert first.bound == (*norm.bound, SPLIT)
    assert second.bound == (*logits.bound, SPLIT)
    tile, private = second.kernel.tuning.tile, second.kernel.tuning.private
    own = first.kernel.tuning
    assert (own.variant, own.private["SPLIT_T"]) == ("split", private["SPAN_T"])
    assert not COPYING_CONSTANTS & own.private.keys(), "a norm has no tensor maps"
    assert private["JOINED"] == 1
    assert second.grid == logits.kernel.spec.grid(logits.kernel.spec.unpack(logits.params), tile)
    fixed = 4 * tile["TILE_N"] // 64 * tile["TILE_T"] + 512
    assert private["SHARED"] + fixed <= MOST_SHARED


def test_other_rows_are_split_by_the_blocks_of_the_logits() -> None:
    for before in (launches(1), launches(8, norm_rows=9), launches(8, x=view()), launches(64, width=16384)):
        assert split(before) == before
