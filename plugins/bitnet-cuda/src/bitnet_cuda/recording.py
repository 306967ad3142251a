"""What launches are told: which may start while others run, what they fetch for later ones, where their copies are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bitnet_hal.base import Bound
from bitnet_hal.families.stream import StreamBuffer, StreamLaunch
from bitnet_hal.kernels.catalogue import KV_BLOCK, ROTATED_KERNELS
from bitnet_hal.plugin import Constants, table

from bitnet_cuda.driver import driver
from bitnet_cuda.errors import check

AHEAD = 2  # places further on: of that launch a kernel asks for the weights, into the L2 cache
NEXT = ROTATED_KERNELS  # those of the very next launch: these kernels are short, and read little
MOST_AHEAD = 8 << 20  # bytes of a matrix, at most: they should still be in the cache when they are wanted
EARLY = table(__file__, "early.toml")  # bindings that a kernel reads before it has waited for the kernels before it
FETCHING = ROTATED_KERNELS | {"norm_matmul", "norm_matmul_glu", "rope_attention"}  # last arguments: what, its bytes


def may_overlap(launches: Sequence[StreamLaunch]) -> list[bool]:
    """For each launch: what it reads before it waits for those before it is not written in this recording."""
    written: set[StreamBuffer] = set()
    result = []
    for launch in launches:
        bound = list(zip(launch.kernel.spec.bindings, launch.bound, strict=False))
        early = EARLY.get(launch.kernel.spec.name, ())
        result.append(not any(view.buffer in written for binding, view in bound if binding.name in early))
        written.update(view.buffer for binding, view in bound if binding.access != "r")
    return result


def apart(launches: Sequence[StreamLaunch]) -> list[StreamLaunch]:
    """Norms have SHARED, a multiprocessor each, in front of queries, keys and values, and BESIDE elsewhere."""
    result = list(launches)
    for i, norm in enumerate(launches[:-1]):
        private, product = norm.kernel.tuning.private, launches[i + 1].kernel
        if "BESIDE" in private and product.constants.get("ADD") != 0:
            less = replace(norm.kernel.tuning, private={**private, "SHARED": private["BESIDE"]})
            result[i] = replace(norm, kernel=replace(norm.kernel, tuning=less))
    return result


def weights_ahead(launches: Sequence[StreamLaunch]) -> list[Bound[StreamBuffer] | None]:
    """For each launch: the beginning of the weights AHEAD places on. Products with block scales have no room ("block"),
    or ask for their own weights early enough ("ring")."""
    weights = [*map(_weights, launches), *[None] * AHEAD]
    ahead = [weights[at + (1 if one.kernel.spec.name in NEXT else AHEAD)] for at, one in enumerate(launches)]
    return [None if one.kernel.tuning.variant == "block" else its for one, its in zip(launches, ahead, strict=True)]


def _weights(launch: StreamLaunch) -> Bound[StreamBuffer] | None:
    named = zip(launch.kernel.spec.bindings, launch.bound, strict=False)
    found = next((view for binding, view in named if binding.name in ("w", "codes")), None)
    early = launch.kernel.tuning.variant == "ring"
    return None if early or found is None else Bound(found.buffer, found.offset, min(found.nbytes, MOST_AHEAD))


def tensor_maps(launch: StreamLaunch) -> list[Any]:
    """Where bulk copies find weights and activations: a kernel's last arguments, if it has any."""
    private = launch.kernel.tuning.private
    if not {"SPAN_N", "SPAN_T", "PAIRED", "CHUNKS"} & private.keys():
        return []
    rows, outs, width, *_ = map(int, launch.kernel.spec.unpack(launch.params).values())
    first, second, third, *more = (bound.buffer.address + bound.offset for bound in launch.bound)
    if "PAIRED" in private:  # caches, a block's rows at a time
        row, size = 2 * private["HEAD_DIM"], launch.bound[1].nbytes
        return [_tensor_map(one, (row, size // row), (row,), (128, KV_BLOCK), 3) for one in (second, third)]
    if "CHUNKS" in private:  # eight rows, 128 bytes of them at a time
        row = width // 4
        dims, box = (128, 8, private["CHUNKS"], outs // 8), (128, 8, private["CHUNKS"], 1)
        return [_tensor_map(first, dims, (row, 128, 8 * row), box, 3)]
    if "SPAN_N" in private:  # a head, 128 bytes of its rows at a time
        row = width if launch.kernel.spec.name == "approx_logits" else 2 * width
        return [_tensor_map(second, (row, outs), (row,), (128, private["SPAN_N"]), 3)]
    if "ROW_TILES" in private:
        outs *= (parts := 2 if launch.kernel.spec.name == "matmul_ternary_glu" else 1)
        return _lines(private, (first, third, more[0]), (rows, outs, width), parts)
    tokens = _tensor_map(third, (width, rows), (width,), (128, private["SPAN_T"]), 3)
    if "STAGES" not in private:
        return [tokens]
    if "M_TILES" not in private:  # 512 columns at a time, with the scales of activations, each of 32 columns
        scales = _tensor_map(more[0], (width // 8, rows), (width // 8,), (64, private["SPAN_T"]), 2)
        return [_tensor_map(first, (width // 4, outs), (width // 4,), (128, 128), 3), tokens, scales]
    row = width // 4
    parts = 2 if launch.kernel.spec.name == "matmul_ternary_glu" else 1
    own = 2 * private["M_TILES"] // parts  # a lane has `own` neighbouring rows of a part
    dims, steps = (row, 8, own, parts * outs // (8 * own)), (own * row, row, 8 * own * row)
    return [_tensor_map(first, dims, steps, (32, 8, own, private["GROUP"] // 32 - 4), 1), tokens]


def _lines(private: Constants, at: Sequence[int], shape: Sequence[int], parts: int) -> list[Any]:
    """For block_group.cuh, 512 columns at a time: weights, of which a copy has a block's rows of one of `parts`;
    activations, a column block behind the other; their scales, each of 32 columns. at: where these begin."""
    (weights, tokens, scales), (rows, outs, width), span_t = at, shape, private["SPAN_T"]
    high, columns = 64 * private["ROW_TILES"] // parts, (128, rows, 1, width // 128)
    return [
        _tensor_map(weights, (width // 4, outs), (width // 4,), (128, high), 3),
        _tensor_map(tokens, columns, (width, 16, 128), (128, span_t, 1, 4), 3),
        _tensor_map(scales, (width // 8, rows), (width // 8,), (64, span_t), 2),
    ]


def _tensor_map(address: int, dims: Sequence[int], steps: Sequence[int], box: Sequence[int], swizzle: int) -> Any:
    """Of bytes; what lies outside reads as zeros. swizzle: 1, 2, 3 for rows of 32, 64, 128 bytes."""
    api = driver()
    longs = [[api.cuuint64_t(n) for n in sizes] for sizes in (dims, steps)]
    ints = [[api.cuuint32_t(n) for n in sizes] for sizes in (box, [1] * len(box))]
    how = api.CUtensorMapInterleave(0), api.CUtensorMapSwizzle(swizzle), api.CUtensorMapL2promotion(3)  # 256 bytes
    kind, fill = api.CUtensorMapDataType(0), api.CUtensorMapFloatOOBfill(0)
    return check(api.cuTensorMapEncodeTiled(kind, len(dims), address, *longs, *ints, *how, fill), "launch")[0]
