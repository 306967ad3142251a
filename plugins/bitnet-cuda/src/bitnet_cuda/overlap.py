"""Which launches of a recording may start while those before them run, and what they fetch for later ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bitnet_core.hal import Buffer, Grid, View

if TYPE_CHECKING:
    from bitnet_cuda.device import CudaKernel

    Launch = tuple[CudaKernel, Grid, tuple[View, ...], bytes]

AHEAD = 2
"""A kernel asks for the weights of the launch so many places further on, into the L2 cache."""
MOST_AHEAD = 16 << 20
"""Largest matrix to ask for, in bytes: it should still be in the cache when it is wanted."""
EARLY = {
    "matmul_ternary": {"w"},
    "matmul_dense": {"w"},
    "norm_matmul": {"gamma", "w", "wscale"},
    "norm_matmul_glu": {"gamma", "w", "wscale"},
    "rope_attention": {"step", "tables", "k_cache", "v_cache"},
}
"""Bindings that a kernel reads before it has waited for the kernels before it."""


def may_overlap(launches: Sequence[Launch]) -> list[bool]:
    """For each launch: it waits by itself, and what it reads earlier is not written in this recording."""
    written: set[Buffer] = set()
    result = []
    for kernel, _, views, _ in launches:
        bound = list(zip(kernel.spec.bindings, views, strict=True))
        early = EARLY.get(kernel.spec.name, set())
        stays = not any(view.buffer in written for binding, view in bound if binding.name in early)
        result.append(kernel.overlaps and stays)
        written.update(view.buffer for binding, view in bound if binding.access != "r")
    return result


def weights_ahead(launches: Sequence[Launch]) -> list[View | None]:
    """For each launch: the ternary weights of the one AHEAD places on, if it has any and they are not too large."""
    weights: list[View | None] = []
    for kernel, _, views, _ in launches:
        names = [binding.name for binding in kernel.spec.bindings]
        view = views[names.index("w")] if "w" in names else None
        weights.append(view if view and view.nbytes <= MOST_AHEAD else None)
    return [weights[i + AHEAD] if i + AHEAD < len(weights) else None for i in range(len(weights))]
