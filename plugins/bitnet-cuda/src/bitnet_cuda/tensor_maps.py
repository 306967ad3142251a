"""Tensor maps: the last arguments of the kernels whose weights and activations come by bulk copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bitnet_hal.families.stream import StreamLaunch
from bitnet_hal.kernels.catalogue import KV_BLOCK

from bitnet_cuda.driver import driver
from bitnet_cuda.errors import check

COPYING_CONSTANTS = {"SPAN_N", "SPAN_T", "PAIRED", "CHUNKS"}
"""The constants of which each kernel with bulk copies has one."""
BOX_BYTES = 128
"""The bytes of a row in the boxes of most copies: the width of the widest swizzle."""
SWIZZLE_32 = 1
SWIZZLE_64 = 2
SWIZZLE_128 = 3
"""CUtensorMapSwizzle for box rows of 32, 64 and 128 bytes."""
L2_256_BYTES = 3
"""CUtensorMapL2promotion: a copy brings 256 bytes into the L2 cache."""


def tensor_maps(launch: StreamLaunch) -> list[Any]:
    """Return the tensor maps of a launch in the order of its kernel's arguments; none for kernels without bulk copies.

    The constants of the tuning tell the kernels apart.
    """
    private = launch.kernel.tuning.private
    if not COPYING_CONSTANTS & private.keys():
        return []
    if "PAIRED" in private:
        return _cache_maps(launch)
    if "CHUNKS" in private:
        return [_ring_map(launch)]
    if "SPAN_N" in private:
        return [_head_map(launch)]
    if "ROW_TILES" in private:
        return _block_group_maps(launch)
    tokens = _token_map(launch)
    if "STAGES" not in private:
        return [tokens]
    if "M_TILES" not in private:
        return _block_stream_maps(launch, tokens)
    return [_stream_weight_map(launch), tokens]


def _address(launch: StreamLaunch, index: int) -> int:
    """Return the device address of a launch's binding."""
    bound = launch.bound[index]
    return int(bound.buffer.address + bound.offset)


def _sizes(launch: StreamLaunch) -> tuple[int, int, int]:
    """Return (rows, outs, width), the first parameters of a product."""
    rows, outs, width, *_ = launch.kernel.spec.unpack(launch.params).values()
    return int(rows), int(outs), int(width)


def _weight_parts(launch: StreamLaunch) -> int:
    """Return the number of matrices that the weights are made of: two, gate and up, for matmul_ternary_glu."""
    return 2 if launch.kernel.spec.name == "matmul_ternary_glu" else 1


def _cache_maps(launch: StreamLaunch) -> list[Any]:
    """Return the maps of keys and values [positions, head_dim] f16 for attention_wgmma.cu: boxes of KV_BLOCK rows."""
    row_bytes = 2 * launch.kernel.tuning.private["HEAD_DIM"]
    positions = launch.bound[1].nbytes // row_bytes
    dims = (row_bytes, positions)
    box = (BOX_BYTES, KV_BLOCK)
    keys = _tensor_map(_address(launch, 1), dims, (row_bytes,), box, SWIZZLE_128)
    values = _tensor_map(_address(launch, 2), dims, (row_bytes,), box, SWIZZLE_128)
    return [keys, values]


def _ring_map(launch: StreamLaunch) -> Any:
    """Return the map of weights for matmul_ternary_block_ring.cu: boxes of eight rows in chunks of 128 bytes."""
    _, outs, width = _sizes(launch)
    chunks = launch.kernel.tuning.private["CHUNKS"]
    row_bytes = width // 4
    dims = (BOX_BYTES, 8, chunks, outs // 8)
    strides = (row_bytes, BOX_BYTES, 8 * row_bytes)
    return _tensor_map(_address(launch, 0), dims, strides, (BOX_BYTES, 8, chunks, 1), SWIZZLE_128)


def _head_map(launch: StreamLaunch) -> Any:
    """Return the map of a head [outs, width] of int8 codes or f16: boxes of SPAN_N rows."""
    _, outs, width = _sizes(launch)
    row_bytes = width if launch.kernel.spec.name == "approx_logits" else 2 * width
    box = (BOX_BYTES, launch.kernel.tuning.private["SPAN_N"])
    return _tensor_map(_address(launch, 1), (row_bytes, outs), (row_bytes,), box, SWIZZLE_128)


def _token_map(launch: StreamLaunch) -> Any:
    """Return the map of quantized activations [rows, width] int8: boxes of SPAN_T rows."""
    rows, _, width = _sizes(launch)
    box = (BOX_BYTES, launch.kernel.tuning.private["SPAN_T"])
    return _tensor_map(_address(launch, 2), (width, rows), (width,), box, SWIZZLE_128)


def _scale_map(launch: StreamLaunch) -> Any:
    """Return the map of activation scales [rows, width / 32] f32: boxes of SPAN_T rows by the scales of 512 columns."""
    rows, _, width = _sizes(launch)
    row_bytes = width // 8
    box = (64, launch.kernel.tuning.private["SPAN_T"])
    return _tensor_map(_address(launch, 3), (row_bytes, rows), (row_bytes,), box, SWIZZLE_64)


def _block_group_maps(launch: StreamLaunch) -> list[Any]:
    """Return the maps of weights, activations and their scales for block_group.cuh, with boxes of 512 columns.

    A box of weights has a block's rows of one part. A box of activations has four column blocks, one after the other.
    """
    rows, outs, width = _sizes(launch)
    private = launch.kernel.tuning.private
    parts = _weight_parts(launch)
    row_bytes = width // 4
    box = (BOX_BYTES, 64 * private["ROW_TILES"] // parts)
    weights = _tensor_map(_address(launch, 0), (row_bytes, parts * outs), (row_bytes,), box, SWIZZLE_128)
    token_dims = (128, rows, 1, width // 128)
    token_box = (BOX_BYTES, private["SPAN_T"], 1, 4)
    tokens = _tensor_map(_address(launch, 2), token_dims, (width, 16, 128), token_box, SWIZZLE_128)
    return [weights, tokens, _scale_map(launch)]


def _block_stream_maps(launch: StreamLaunch, tokens: Any) -> list[Any]:
    """Return the maps for matmul_ternary_block_stream.cu: boxes of WEIGHT_ROWS rows by 512 columns."""
    _, outs, width = _sizes(launch)
    row_bytes = width // 4
    box = (BOX_BYTES, launch.kernel.tuning.private["WEIGHT_ROWS"])
    weights = _tensor_map(_address(launch, 0), (row_bytes, outs), (row_bytes,), box, SWIZZLE_128)
    return [weights, tokens, _scale_map(launch)]


def _stream_weight_map(launch: StreamLaunch) -> Any:
    """Return the map of weights for stream.cuh: boxes of one column block, in which a lane's rows are neighbours."""
    _, outs, width = _sizes(launch)
    private = launch.kernel.tuning.private
    parts = _weight_parts(launch)
    lane_rows = 2 * private["M_TILES"] // parts
    row_bytes = width // 4
    groups = parts * outs // (8 * lane_rows)
    dims = (row_bytes, 8, lane_rows, groups)
    strides = (lane_rows * row_bytes, row_bytes, 8 * lane_rows * row_bytes)
    multiplying_warps = private["GROUP"] // 32 - 4
    return _tensor_map(_address(launch, 0), dims, strides, (32, 8, lane_rows, multiplying_warps), SWIZZLE_32)


def _tensor_map(address: int, dims: Sequence[int], strides: Sequence[int], box: Sequence[int], swizzle: int) -> Any:
    """Return a CUtensorMap of bytes; elements outside read as zeros.

    dims and box: innermost first. strides: bytes from one element to the next in each dimension but the innermost.
    """
    api = driver()
    return check(
        api.cuTensorMapEncodeTiled(
            api.CUtensorMapDataType(0),  # bytes
            len(dims),
            address,
            [api.cuuint64_t(n) for n in dims],
            [api.cuuint64_t(n) for n in strides],
            [api.cuuint32_t(n) for n in box],
            [api.cuuint32_t(1) for _ in box],  # every element
            api.CUtensorMapInterleave(0),
            api.CUtensorMapSwizzle(swizzle),
            api.CUtensorMapL2promotion(L2_256_BYTES),
            api.CUtensorMapFloatOOBfill(0),
        ),
        "launch",
    )[0]
