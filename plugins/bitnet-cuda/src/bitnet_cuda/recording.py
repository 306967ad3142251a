"""What a recording's launches are told: which may start while others run, and what they fetch for later ones."""

from __future__ import annotations

from collections.abc import Sequence

from bitnet_core.hal.base import Bound
from bitnet_core.hal.stream import StreamBuffer, StreamLaunch

AHEAD = 2
"""A kernel asks for the weights of the launch so many places further on, into the L2 cache."""
MOST_AHEAD = 16 << 20
"""Most bytes that a kernel asks for: they should still be in the cache when they are wanted. Of a larger matrix, the
kernels before it that have nothing else to ask for take its first bytes."""
WEIGHTS = ("w", "codes")
"""Bindings that are asked for, the first that a kernel has."""
EARLY = {
    "matmul_ternary": {"w"},
    "matmul_ternary_block": {"w", "wscale"},
    "matmul_dense": {"w"},
    "norm_matmul": {"gamma", "w", "wscale"},
    "norm_matmul_glu": {"gamma", "w", "wscale"},
    "rope_attention": {"step", "tables", "k_cache", "v_cache"},
    "draft_logits": {"codes", "scale", "error"},
}
"""Bindings that a kernel reads before it has waited for the kernels before it."""
FETCHING = frozenset({"norm_matmul", "norm_matmul_glu", "rope_attention"})
"""Kernels whose last arguments are what they fetch for a later one: its address and its bytes."""


def may_overlap(launches: Sequence[StreamLaunch]) -> list[bool]:
    """For each launch: what it reads before it waits for those before it is not written in this recording."""
    written: set[StreamBuffer] = set()
    result = []
    for launch in launches:
        bound = list(zip(launch.kernel.spec.bindings, launch.bound, strict=False))
        early = EARLY.get(launch.kernel.spec.name, set())
        result.append(not any(view.buffer in written for binding, view in bound if binding.name in early))
        written.update(view.buffer for binding, view in bound if binding.access != "r")
    return result


def weights_ahead(launches: Sequence[StreamLaunch]) -> list[Bound[StreamBuffer] | None]:
    """For each launch: what it asks for, weights of the one AHEAD places on or the first bytes of a large matrix."""
    weights = [_weights(launch) for launch in launches]
    result = [view if view and view.nbytes <= MOST_AHEAD else None for view in (*weights[AHEAD:], *[None] * AHEAD)]
    for i, view in enumerate(weights):
        if view and view.nbytes > MOST_AHEAD:
            near = [j for j in range(i - 1, i - AHEAD - 2, -1) if j >= 0 and launches[j].kernel.spec.name in FETCHING]
            for at, j in zip(range(0, view.nbytes, MOST_AHEAD), (j for j in near if not result[j]), strict=False):
                result[j] = Bound(view.buffer, view.offset + at, min(MOST_AHEAD, view.nbytes - at))
    return result[: len(launches)]


def _weights(launch: StreamLaunch) -> Bound[StreamBuffer] | None:
    names = [binding.name for binding in launch.kernel.spec.bindings]
    name = next((name for name in WEIGHTS if name in names), None)
    return launch.bound[names.index(name)] if name else None
