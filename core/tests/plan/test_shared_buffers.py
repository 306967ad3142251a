"""Small arrays in buffers that they share."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from bitnet_core.plan.shared_buffers import SHARED, SMALL, SharedBuffers
from bitnet_core.plan.upload import upload
from bitnet_hal.device import View, whole
from bitnet_hal.reference.device import NumpyDevice


def test_small_ones_share_and_do_not_overlap() -> None:
    device, made = NumpyDevice(), list[int]()

    def alloc(nbytes: int) -> View:
        made.append(nbytes)
        return whole(device.alloc(nbytes))

    shared = SharedBuffers(alloc, 256)
    sizes = [4, 1000, 256, SMALL, SMALL + 1, SMALL, SMALL, SMALL]
    views = [shared.view(nbytes) for nbytes in sizes]
    assert [view.nbytes for view in views] == sizes
    assert all(view.offset % 256 == 0 for view in views)
    assert made == [SHARED, SMALL + 1, SHARED]
    together = [view for view in views if view.buffer is views[0].buffer]
    assert len(together) == 6
    assert all(before.offset + before.nbytes <= after.offset for before, after in pairwise(together))


def test_the_vectors_of_a_model_do(tiny: Any) -> None:
    device = NumpyDevice()
    weights = upload(tiny.TinySource(tiny.CONFIGS["silu"]), device, 64)
    norms = [norm for layer in weights.layers for norm in (layer.attn_norm, layer.ffn_norm)]
    assert len({id(norm.buffer) for norm in norms}) == 1
    weights.free(device)
