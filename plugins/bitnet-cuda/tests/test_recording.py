"""Which launches of a recording may run into each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from bitnet_core.hal import View
from bitnet_core.kernels.catalogue import CATALOGUE
from bitnet_cuda import recording


def launch(name: str, **views: View) -> Any:
    """A launch whose other bindings are buffers of their own."""
    spec = CATALOGUE[name]
    bound = tuple(views.get(binding.name) or view(16) for binding in spec.bindings)
    return SimpleNamespace(kernel=SimpleNamespace(spec=spec), bound=bound)


def view(nbytes: int) -> View:
    return View(Buffer(nbytes), 0, nbytes)  # type: ignore[arg-type]  # a buffer without a kind


class Buffer:
    """Hashable by identity, as the device's are."""

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


def test_weights_are_asked_for_two_launches_ahead() -> None:
    small: Any = view(640)
    launches = [launch("rope_attention"), launch("rms_norm"), launch("norm_matmul", w=small)]
    assert recording.weights_ahead(launches) == [small, None, None]
    assert recording.weights_ahead([]) == []


def test_the_first_bytes_of_a_large_matrix_are_asked_for_by_who_has_nothing_else_to_ask_for() -> None:
    most = recording.MOST_AHEAD
    head, down = Buffer(2 * most + 64), view(640)
    codes = View(head, 0, head.nbytes)  # type: ignore[arg-type]  # a buffer without a kind
    before = [launch("norm_matmul_glu", w=view(64)), launch("norm_matmul", w=down), launch("rms_norm")]
    asked = recording.weights_ahead([*before, launch("draft_logits", codes=codes)])
    assert asked == [(head, most, most), (head, 0, most), None, None]
    asked = recording.weights_ahead([launch("rope_attention"), *before, launch("draft_logits", codes=codes)])
    assert asked[0] == down, "what is wanted sooner goes first"
