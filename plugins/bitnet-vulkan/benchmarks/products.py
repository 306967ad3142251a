"""Ternary products of the 2B-4T shape under many tunings, each compared with exact integers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from bitnet_core.hal import Buffer, whole
from bitnet_core.kernels.catalogue import MATMUL_TERNARY
from bitnet_vulkan.device import VulkanDevice
from bitnet_vulkan.pipelines import Source

RNG = np.random.default_rng(0)
SHAPES = {"qkv": (3840, 2560), "o": (2560, 2560), "gate_up": (13824, 2560), "down": (2560, 6912)}
TINY = {"small": (72, 384)}
Constants = dict[str, int]


def put(device: VulkanDevice, array: npt.NDArray[Any]) -> Buffer:
    """A buffer with these contents."""
    buffer = device.alloc(array.nbytes)
    device.upload(whole(buffer), np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return buffer


def seconds(action: Callable[[], object], device: VulkanDevice, runs: int = 5) -> float:
    """Median time of an action and of what it queues, once the device is awake."""
    times: list[float] = []
    awake = time.perf_counter() + 0.05
    while len(times) < runs:
        start = time.perf_counter()
        action()
        device.synchronize()
        if start > awake:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def product_variants(device: VulkanDevice, rows: int, outs: int, width: int) -> Iterator[Constants]:
    """Tunings of matmul_ternary."""
    if device._physical.features.subgroups and rows <= 8:
        for group in (128, 256):
            for lanes in (8, 16, 32):
                for rows_per in (1, 2):
                    if (
                        lanes > device._physical.features.subgroups
                        or (width // 64 + lanes - 1) // lanes * rows_per > 24
                    ):
                        continue
                    yield {
                        "SOURCE": Source.FEW,
                        "GROUP": group,
                        "TILE_N": group // lanes * rows_per,
                        "TILE_T": rows,
                        "WIDTH": width,
                        "LANES": lanes,
                    }
    elif rows <= 8:
        yield {"GROUP": 128, "TILE_N": 8, "TILE_T": rows}
    else:
        yield {"SOURCE": Source.TILED, "GROUP": 256, "TILE_N": 64, "TILE_T": 64}
        if device._physical.features.matrix:
            for n, t, group, wave_t in MATRIX_TILES:
                yield {"SOURCE": Source.COOP, "GROUP": group, "TILE_N": n, "TILE_T": t, "WAVE_T": wave_t}


MATRIX_TILES = (
    *((128, 128, 256, 32), (128, 128, 256, 64), (128, 128, 128, 64), (64, 64, 128, 32), (128, 64, 128, 32)),
    *(
        (128, 64, 128, 64),
        (64, 128, 128, 64),
        (64, 128, 128, 32),
        (64, 64, 64, 32),
        (64, 32, 64, 32),
        (128, 64, 256, 32),
    ),
)
"""TILE_N, TILE_T, GROUP, WAVE_T."""


def products(device: VulkanDevice, shapes: Mapping[str, tuple[int, int]]) -> None:
    """Every tuning of every shape; the fastest ones last."""
    for label, (outs, width) in shapes.items():
        codes = RNG.integers(0, 3, (outs, width // 128, 4, 32)).astype(np.uint8)
        packed = codes[:, :, 0] << 6 | codes[:, :, 1] << 4 | codes[:, :, 2] << 2 | codes[:, :, 3]
        weights = [put(device, packed) for _ in range(30)]  # more than the caches hold
        for rows in (1, 8, 512):
            q = RNG.integers(-128, 128, (rows, width)).astype(np.int8)
            scales = RNG.random(rows).astype(np.float32), RNG.random(outs).astype(np.float32)
            sums = q.astype(np.float64) @ (codes.reshape(outs, width).astype(np.float64) - 1).T
            expected = sums.astype(np.float32) * scales[0][:, None] * scales[1]
            others = [put(device, a) for a in (scales[1], q, scales[0], q.sum(1, dtype=np.int32))]
            y = device.alloc(4 * rows * outs)
            params = {"rows": rows, "outs": outs, "width": width, "y_stride": outs, "y_first": 0}
            found = []
            for constants in product_variants(device, rows, outs, width):
                each = _product(device, constants, params, [weights, others, y], expected)
                found.append((each, constants))
            found.sort(key=lambda item: item[0])
            for each, constants in reversed(found[:8] if rows <= 8 else found):
                text = " ".join(f"{name} {int(value)}" for name, value in constants.items())
                speed = outs * width / 4 / each / 1e9, 2 * outs * width * rows / each / 1e12
                print(
                    f"{label:8s} rows {rows:3d} {each * 1e6:8.2f} us {speed[0]:6.0f} GB/s {speed[1]:6.1f} TOPS  {text}"
                )
            for buffer in (*others, y):
                device.free(buffer)
        for buffer in weights:
            device.free(buffer)


def _product(
    device: VulkanDevice,
    constants: Constants,
    params: Mapping[str, int],
    operands: Sequence[Any],
    expected: npt.NDArray[np.float32],
) -> float:
    """Seconds of one launch among others, over weights that are not in a cache; infinity if it is wrong."""
    weights, others, y = operands
    kernel = device.compile(MATMUL_TERNARY, {"ADD": 0, **constants})
    grid = MATMUL_TERNARY.grid(params, constants)
    count = 120 if params["rows"] <= 8 else 10
    with device.record() as recording:
        for i in range(count):
            views = [whole(b) for b in (weights[i % len(weights)], *others, y)]
            device.launch(kernel, grid, views, MATMUL_TERNARY.pack(params))
    each = seconds(lambda: device.replay(recording), device) / count
    recording.close()
    out = np.empty_like(expected)
    device.download(whole(y), out.reshape(-1).view(np.uint8).data)
    if not np.array_equal(out, expected):
        print("WRONG:", constants, float(np.abs(out - expected).max()))
        return float("inf")
    return each
