"""Decisions about the launches of a recording: overlap, weights to prefetch, and tensor maps of bulk copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from bitnet_hal.base import Bound
from bitnet_hal.families.stream import StreamBuffer, StreamKernel, StreamLaunch
from bitnet_hal.kernels.catalogue import ROTATED_KERNELS
from bitnet_hal.plugin import table

AHEAD = 2
"""The distance in launches to the one whose weights a kernel prefetches into the L2 cache."""
NEXT = ROTATED_KERNELS
"""The kernels that prefetch for the very next launch, since they are short and read little."""
MOST_AHEAD = 8 << 20
"""The maximum bytes of a matrix to prefetch, so that they are still in the cache when their kernel starts."""
EARLY = table(__file__, "early.toml")
"""The bindings that each kernel reads before it waits for the kernels before it."""
FETCHING = ROTATED_KERNELS | {"norm_matmul", "norm_matmul_glu", "rope_attention", "rope_attention_mixed"}
"""The kernels that prefetch; their last arguments are the address and the number of bytes."""
WEIGHTS = ("w", "codes")
"""The names of the bindings of weights."""


def joined(
    launches: Sequence[StreamLaunch], variant: Callable[[StreamKernel, dict[str, int]], StreamKernel]
) -> list[StreamLaunch]:
    """Return the launches without the quantizations that kernels do themselves: of their output, without a norm.

    variant: compiles a kernel with further constants. JOINED kernels have the views of q, scale and qsum behind their
    own.
    """
    result: list[StreamLaunch] = []
    for launch in launches:
        if result and _quantizes(result[-1], launch):
            before = result[-1]
            group_size = launch.kernel.constants["ABLOCK"]
            kernel = variant(before.kernel, {"JOINED": 1, "ABLOCK": group_size})
            result[-1] = replace(before, kernel=kernel, bound=(*before.bound, *launch.bound[2:]))
        else:
            result.append(launch)
    return result


def _quantizes(before: StreamLaunch, launch: StreamLaunch) -> bool:
    """Return whether a launch only quantizes the output of the one before it, whose kernel can be JOINED.

    Its own outputs must lie in other buffers than what that kernel reads: blocks end at different times.
    """
    if launch.kernel.spec.name != "rms_norm_quantize" or launch.kernel.constants["NORM"]:
        return False
    group_size = launch.kernel.constants["ABLOCK"]
    sizes = launch.kernel.spec.unpack(launch.params)
    own = before.kernel.spec.unpack(before.params)
    tuning = before.kernel.tuning
    kind = before.kernel.spec.name, tuning.variant
    if kind in (
        ("matmul_ternary_glu", "block_rows"),
        ("matmul_ternary_glu", "block_tiles"),
        ("matmul_ternary_glu", "block_group"),
    ):
        output = "m"
        columns = own["outs"]
        whole = group_size == 32 and tuning.tile["TILE_N"] % group_size == 0
    elif kind in (("rope_attention", "mma"), ("rope_attention_mixed", "mma")):
        output = "out"
        columns = own["n_heads"] * own["head_dim"]
        whole = group_size > 0 and tuning.private["DIM"] == 128
    else:
        return False
    read = {view.buffer for view in before.bound}
    if any(view.buffer in read for view in launch.bound[2:]):
        return False
    names = [binding.name for binding in before.kernel.spec.bindings]
    same_rows = own["rows"] == sizes["rows"] and columns == sizes["width"] == sizes["stride"]
    return whole and same_rows and columns % 128 == 0 and before.bound[names.index(output)] == launch.bound[0]


def may_overlap(launches: Sequence[StreamLaunch]) -> list[bool]:
    """Return for each launch whether it may start before the launches before it have ended.

    It may if no launch of this recording before it writes a buffer that it reads early.
    """
    written: set[StreamBuffer] = set()
    result = []
    for launch in launches:
        spec = launch.kernel.spec
        early = EARLY.get(spec.name, ())
        overlaps = True
        for binding, view in zip(spec.bindings, launch.bound, strict=False):
            if binding.name in early and view.buffer in written:
                overlaps = False
        for binding, view in zip(spec.bindings, launch.bound, strict=False):
            if binding.access != "r":
                written.add(view.buffer)
        result.append(overlaps)
    return result


def apart(launches: Sequence[StreamLaunch]) -> list[StreamLaunch]:
    """Return the launches with the shared memory of each norm set by the kernel after it.

    A norm before the product of queries, keys and values (ADD 0) keeps SHARED, so that each block has a multiprocessor
    to itself. Other norms that have BESIDE take that instead.
    """
    result = list(launches)
    for i, norm in enumerate(launches[:-1]):
        tuning = norm.kernel.tuning
        product = launches[i + 1].kernel
        if "BESIDE" in tuning.private and product.constants.get("ADD") != 0:
            private = {**tuning.private, "SHARED": tuning.private["BESIDE"]}
            kernel = replace(norm.kernel, tuning=replace(tuning, private=private))
            result[i] = replace(norm, kernel=kernel)
    return result


def weights_ahead(launches: Sequence[StreamLaunch]) -> list[Bound[StreamBuffer] | None]:
    """Return for each launch the start of the weights that it may prefetch, or None.

    Fused norms with block scales (variant "block") prefetch nothing: they have no room for it.
    """
    result: list[Bound[StreamBuffer] | None] = []
    for i, launch in enumerate(launches):
        distance = 1 if launch.kernel.spec.name in NEXT else AHEAD
        if launch.kernel.tuning.variant == "block" or i + distance >= len(launches):
            result.append(None)
        else:
            result.append(_weights(launches[i + distance]))
    return result


def _weights(launch: StreamLaunch) -> Bound[StreamBuffer] | None:
    """Return the first MOST_AHEAD bytes of a launch's weights.

    None if it has no weights, or if its kernel asks for them early enough itself (variant "ring").
    """
    if launch.kernel.tuning.variant == "ring":
        return None
    for binding, view in zip(launch.kernel.spec.bindings, launch.bound, strict=False):
        if binding.name in WEIGHTS:
            return Bound(view.buffer, view.offset, min(view.nbytes, MOST_AHEAD))
    return None
