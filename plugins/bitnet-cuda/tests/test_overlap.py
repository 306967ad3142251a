"""Which launches of a recording may run into each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from bitnet_core.hal import View
from bitnet_core.kernels.catalogue import CATALOGUE
from bitnet_cuda import overlap


def launch(name: str, *, overlaps: bool = True, **views: View) -> Any:
    """A launch whose other bindings are buffers of their own."""
    spec = CATALOGUE[name]
    bound = tuple(views.get(binding.name) or view(16) for binding in spec.bindings)
    return SimpleNamespace(spec=spec, overlaps=overlaps), (1, 1, 1), bound, b""


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
        launch("rms_norm", overlaps=False),
    ]
    assert overlap.may_overlap(launches) == [True, True, False, True, True, False, False]


def test_weights_are_asked_for_ahead_unless_they_would_not_stay_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = view(640), View(Buffer(1 << 30), 0, 1 << 30)  # type: ignore[arg-type]  # as above
    launches = [launch("rope_attention"), launch("norm_matmul", w=small), launch("matmul_dense", w=large)]
    assert overlap.weights_ahead(launches) == [None] * 3  # two places on
    monkeypatch.setattr(overlap, "AHEAD", 1)
    assert overlap.weights_ahead(launches) == [small, None, None]
    assert overlap.weights_ahead([]) == []
