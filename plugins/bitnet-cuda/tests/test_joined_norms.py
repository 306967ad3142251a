"""Which norms two products of a recording share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bitnet_cuda.joined_norms import SQUARES_BYTES, shared_norms
from bitnet_hal.device import Tuning
from bitnet_hal.families.stream import StreamKernel, StreamLaunch
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.launches import Bound, BoundLaunch

WIDTH = 256


class Buffer:
    """A buffer that is hashable by identity, like the device's."""


def view() -> Any:
    return Bound(Buffer(), 0, 64)


SQUARES: Any = Bound(Buffer(), 0, SQUARES_BYTES)
X, Q, SCALE, QSUM = view(), view(), view(), view()
CODES = (Q, SCALE, QSUM)
SIZES = {"rows": 4, "outs": WIDTH, "width": WIDTH, "stride": WIDTH, "y_stride": WIDTH, "eps": 0.5}


def made(
    name: str, variant: str, *views: Any, sizes: dict[str, int], tile_n: int = 32, **constants: int
) -> StreamLaunch:
    """Return a launch; bindings behind `views` get separate buffers."""
    spec = CATALOGUE[name]
    params = {param.name: (SIZES | sizes).get(param.name, 0) for param in spec.params}
    kernel = StreamKernel(spec, constants, Tuning({"TILE_N": tile_n, "SPLITS": 1}, variant), None, None)
    bound = (*views, *(view() for _ in spec.bindings[len(views) :]))
    return BoundLaunch(kernel, (1, 1, 1), bound, spec.pack(params))


def before(variant: str = "rows", q: Any = None, y: Any = X, tile_n: int = 32, **sizes: int) -> StreamLaunch:
    views = view(), view(), q or view(), view(), view(), y
    return made("matmul_ternary_block", variant, *views, tile_n=tile_n, sizes=sizes, ADD=1, BLOCK=128, ABLOCK=32)


def norm(kind: int = 1, group_size: int = 32, **sizes: int) -> StreamLaunch:
    return made("rms_norm_quantize", "", X, view(), *CODES, sizes=sizes, NORM=kind, ABLOCK=group_size)


def after(name: str = "matmul_ternary_glu", variant: str = "block_rows") -> StreamLaunch:
    return made(name, variant, view(), view(), *CODES, sizes={}, BLOCK=128, ABLOCK=32)


def shared(*launches: StreamLaunch) -> list[StreamLaunch]:
    def variant(kernel: StreamKernel, further: dict[str, int]) -> StreamKernel:
        return replace(kernel, tuning=replace(kernel.tuning, private={**kernel.tuning.private, **further}))

    return shared_norms(launches, variant, SQUARES)


def test_two_products_share_the_norm_between_them() -> None:
    """Check the constants and views of both, in a recording that computes the same codes again afterwards."""
    first, between, last = launches = before(), norm(), after()
    one, two, *rest = shared(*launches, norm(kind=0), after("matmul_ternary_block", "rows"))
    assert one.kernel.tuning.private == {"JOINED": 1}
    assert one.bound == (*first.bound, *between.bound[1:], SQUARES)
    assert two.kernel.tuning.private == {"NORMED": 1, "EPS_BITS": 0x3F000000}
    assert two.bound == (*last.bound, SQUARES)
    assert len(rest) == 2


def test_other_norms_stay_launches() -> None:
    others = [
        (before("group"), norm(), after()),
        (before(), norm(), after("matmul_ternary_block", "group")),
        (before(), norm(kind=0), after()),
        (before(), norm(group_size=128), after()),
        (before(), norm(rows=5), after()),
        (before(), norm(stride=384), after()),
        (before(outs=128), norm(), after()),
        (before(y=view()), norm(), after()),
        (before(tile_n=48), norm(), after()),
        (before(q=Q), norm(), after()),  # blocks that end would write what others have yet to read
        (before(), norm(), after(), after()),  # the second product has no sums of squares
        (before(), norm()),
    ]
    assert [len(shared(*launches)) for launches in others] == [len(launches) for launches in others]
