"""The overlap of launches in a recording, and the weights that they prefetch."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from bitnet_cuda import recording, tensor_tiles
from bitnet_hal.device import Tuning, View
from bitnet_hal.families.stream import StreamKernel, StreamLaunch
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.launches import BoundLaunch


def launch(name: str, variant: str = "", **views: View) -> Any:
    """Return a launch; bindings without a given view get separate buffers."""
    spec = CATALOGUE[name]
    bound = tuple(views.get(binding.name) or view(16) for binding in spec.bindings)
    return SimpleNamespace(kernel=SimpleNamespace(spec=spec, tuning=Tuning(variant=variant)), bound=bound)


def view(nbytes: int) -> View:
    return View(Buffer(nbytes), 0, nbytes)  # type: ignore[arg-type]  # a buffer without a kind


class Buffer:
    """A buffer that is hashable by identity, like the device's."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


def test_a_launch_overlaps_unless_what_it_reads_early_was_written() -> None:
    x, weights, step = view(64), view(64), view(64)
    launches = [
        launch("norm_matmul", w=weights, y=x),
        launch("norm_matmul", x=x, w=weights),  # x is read after the wait
        launch("norm_matmul", w=x),  # but weights are not
        launch("rope_attention", step=step),
        launch("argmax_advance", step=step),
        launch("rope_attention", step=step),
    ]
    assert recording.may_overlap(launches) == [True, True, False, True, True, False]


def test_weights_are_asked_for_ahead_as_far_as_the_cache_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    small: Any = view(640)
    large: Any = view(1 << 30)
    launches = [launch("rope_attention"), launch("norm_matmul", w=small), launch("norm_matmul_glu", w=large)]
    assert recording.weights_ahead(launches) == [(large.buffer, 0, recording.MOST_AHEAD), None, None]  # two places on
    monkeypatch.setattr(recording, "AHEAD", 1)
    asked = [one and one[2] for one in recording.weights_ahead(launches)]
    assert asked == [640, recording.MOST_AHEAD, None]
    assert recording.weights_ahead([]) == []


def test_products_with_block_scales_ask_for_nothing_and_the_last_layer_for_the_approximate_logits() -> None:
    weights: Any = view(640)
    layer = [launch("rope_attention"), launch("norm_matmul", "block"), launch("norm_matmul_glu", "block", w=weights)]
    last = [launch("norm_matmul", "block"), launch("rms_norm"), launch("approx_logits", codes=weights)]
    asked = [one and one[2] for one in recording.weights_ahead(layer + last)]
    assert asked == [640, None, None, None, None, None]
    last[0] = launch("norm_matmul")
    assert [one and one[2] for one in recording.weights_ahead(layer + last)][3] == 640


def test_what_rotates_asks_for_the_weights_of_the_very_next_launch() -> None:
    own: Any = view(320)
    layer = [launch("norm_rotate_quantize"), launch("matmul_ternary_block", w=own), launch("glu_rotate_quantize")]
    assert [one and one[2] for one in recording.weights_ahead(layer)] == [320, None, None]


def test_norms_have_a_multiprocessor_to_themselves_in_front_of_queries_alone() -> None:
    def made(name: str, **constants: int) -> StreamLaunch:
        private = {"GROUP": 320, **tensor_tiles.SPREAD} if name == "rms_norm_quantize" else {"GROUP": 256}
        kernel = StreamKernel(CATALOGUE[name], constants, Tuning(private=private), None, None)
        return BoundLaunch(kernel, (1, 1, 1), (), b"")

    norm = made("rms_norm_quantize")
    launches = [
        norm,
        made("matmul_ternary", ADD=0),
        norm,
        made("matmul_ternary", ADD=1),
        norm,
        made("matmul_ternary_glu"),
    ]
    alone, paired = tensor_tiles.SPREAD["SHARED"], tensor_tiles.SPREAD["BESIDE"]
    apart = recording.apart(launches)
    assert [one.kernel.shared for one in apart] == [alone, 0, paired, 0, paired, 0]
    assert norm.kernel.shared == alone, "what a kernel is compiled with is the most that its launches have"
    assert [one.kernel.spec for one in apart] == [one.kernel.spec for one in launches]


def test_what_only_quantizes_an_output_is_joined_with_its_kernel() -> None:
    """Check that views of q, scale and qsum pass to the kernel before, and that nothing else is joined."""

    def made(name: str, sizes: dict[str, int], tuning: Tuning, *views: Any, **constants: int) -> StreamLaunch:
        spec = CATALOGUE[name]
        params = {param.name: sizes.get(param.name, 0) for param in spec.params}
        kernel = StreamKernel(spec, constants, tuning, None, None)
        bound = (*views, *(view(16) for _ in spec.bindings[len(views) :]))
        return BoundLaunch(kernel, (1, 1, 1), bound, spec.pack(params))

    m: Any = view(64)
    tile = Tuning({"TILE_N": 96, "TILE_T": 8, "SPLITS": 1}, "block_rows")
    glu = made("matmul_ternary_glu", {"rows": 4, "outs": 384}, tile, *(view(16) for _ in range(5)), m, ABLOCK=32)
    sizes = {"rows": 4, "width": 384, "stride": 384}

    def quantize(x: Any = m, norm: int = 0, group_size: int = 32, **other: int) -> StreamLaunch:
        return made("rms_norm_quantize", sizes | other, Tuning(), x, NORM=norm, ABLOCK=group_size)

    def joined(before: StreamLaunch, after: StreamLaunch) -> list[StreamLaunch]:
        def variant(kernel: StreamKernel, further: dict[str, int]) -> StreamKernel:
            return replace(kernel, tuning=Tuning(private=further))

        return recording.joined([before, after], variant)

    after = quantize()
    (one,) = joined(glu, after)
    assert one.kernel.tuning.private == {"JOINED": 1, "ABLOCK": 32}
    assert one.bound == (*glu.bound, *after.bound[2:])
    others = [quantize(view(64)), quantize(norm=1), quantize(group_size=0), quantize(group_size=128)]
    others += [quantize(rows=5), quantize(stride=512), quantize(width=256, stride=256)]
    assert [len(joined(glu, other)) for other in others] == [2] * len(others)
    shared = replace(after, bound=(*after.bound[:2], glu.bound[2], *after.bound[3:]))
    assert len(joined(glu, shared)) == 2, "blocks that end would write what others have yet to read"
    odd = replace(glu, kernel=replace(glu.kernel, tuning=replace(tile, tile={**tile.tile, "TILE_N": 40})))
    assert len(joined(odd, after)) == 2
