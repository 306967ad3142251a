"""Compare and time tiles of the ternary products of prompts at the shapes of a model.

    python plugins/bitnet-cuda/benchmarks/products.py [--shape bonsai-8b] [--rows 512,2048] [--activation-group-size
    128]

Results are compared with those of the plugin's selected tile, which is the first line of each matrix. Times are wall
clock over 50 launches of a recording. --activation-group-size 128 times the kernel for scales of 32 columns too.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from bitnet_cuda import compile
from bitnet_cuda.describe import device_infos
from bitnet_cuda.device import CudaDevice
from bitnet_cuda.tensor_tiles import BLOCK_STREAM, WIDE, mma_tile, stream_tile
from bitnet_hal.device import Tuning, View, whole
from bitnet_hal.errors import GpuError
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.kernels.params import MATMUL_PARAMS
from bitnet_hal.kernels.spec import KernelSpec
from bitnet_hal.launcher import Launch

SHAPES = {
    "2b4t": (0, ((3840, 2560), (2560, 2560), (13824, 2560), (2560, 6912))),
    "bonsai-8b": (128, ((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288))),
    "bonsai-27b": (128, ((10240, 5120), (5120, 6144), (34816, 5120), (5120, 17408), (6144, 5120))),
}
"""Columns of a weight scale (0: the row); rows and columns of a layer's matrices. Every second product adds to y."""
BLOCK_TILES = {
    32: [mma_tile(64, 64, (2, 2), 4, 3), *BLOCK_STREAM.values()],
    128: [*BLOCK_STREAM.values(), *WIDE.values()],
}
"""The tiles by the number of columns of an activation scale."""
ROW_TILES = [
    mma_tile(128, 128, (4, 2), 4),
    *(stream_tile(*tile) for tile in ((1, 2, 6), (1, 2, 8), (2, 2, 6), (2, 2, 8))),
]


def views(device: CudaDevice, ablock: int, block: int, rows: int, outs: int, width: int) -> list[View]:
    """Return operands with small random values, in the order of the bindings."""
    rng = np.random.default_rng(rows + outs)
    columns = ablock or width
    scale = rng.uniform(0.001, 0.01, rows * (width // columns)).astype(np.float32).repeat(max(1, ablock // 32))
    arrays = (
        rng.integers(0, 256, outs * width // 4, dtype=np.uint8) & 0xAA,
        rng.uniform(0.5, 1.5, outs * (width // block if block else 1)).astype(np.float32),
        rng.integers(-127, 128, rows * width).astype(np.int8),
        scale,
        np.zeros(scale.size, np.int32),
        np.zeros(rows * outs, np.float32),
    )
    made = [whole(device.alloc(array.nbytes)) for array in arrays]
    for view, array in zip(made, arrays, strict=True):
        device.upload(view, array.view(np.uint8).data)
    return made


def product(block: int, ablock: int, add: int) -> tuple[KernelSpec, dict[str, int]]:
    """Return the kernel and its constants."""
    return CATALOGUE["matmul_ternary_block" if block else "matmul_ternary"], {
        "ADD": add,
        **({"BLOCK": block, "ABLOCK": ablock} if block else {}),
    }


def compile_all(block: int, ablock: int, tunings: list[Tuning]) -> None:
    """Fill the program cache with all cores."""
    sources = [compile.source(*product(block, ablock, add), tuning) for add in (0, 1) for tuning in tunings]
    name = product(block, ablock, 0)[0].name
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda source: compile.cached_cubin(name, source, "sm_90a"), sources))


def measure(
    device: CudaDevice,
    spec: KernelSpec,
    constants: dict[str, int],
    tuning: Tuning,
    bound: list[View],
    shape: dict[str, int],
) -> tuple[float, float]:
    """Return (seconds of a launch, sum of y)."""
    kernel = device.compile(spec, constants, tuning)
    device.upload(bound[-1], memoryview(bytes(bound[-1].nbytes)))
    launch = Launch(kernel, spec.grid(shape, tuning.tile), tuple(bound), spec.pack(shape))
    with device.record() as recording:
        for _ in range(50):
            device.launch(launch.kernel, launch.grid, launch.views, launch.params)
    best = float("inf")
    for _ in range(5):
        device.synchronize()
        began = time.perf_counter()
        device.replay(recording)
        device.synchronize()
        best = min(best, (time.perf_counter() - began) / 50)
    recording.close()
    y = np.empty(shape["rows"] * shape["outs"], np.float32)
    device.download(bound[-1], y.view(np.uint8).data)
    return best, float(np.abs(y).sum(dtype=np.float64))


def main() -> None:
    """Measure all tiles and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="bonsai-8b")
    parser.add_argument("--rows", default="512,2048")
    parser.add_argument("--activation-group-size", type=int, choices=BLOCK_TILES, default=32)
    arguments = parser.parse_args()
    block, matrices = SHAPES[arguments.shape]
    ablock = arguments.activation_group_size if block else 0
    tunings = BLOCK_TILES[ablock] if block else ROW_TILES
    device = CudaDevice(device_infos()[0])
    compile_all(block, ablock, tunings)
    for rows in map(int, arguments.rows.split(",")):
        for add, (outs, width) in enumerate(matrices):
            values = (rows, outs, width, outs, 0)
            shape = dict(zip((param.name for param in MATMUL_PARAMS), values, strict=True))
            bound = views(device, ablock, block, rows, outs, width)
            spec, constants = product(block, ablock, add % 2)
            own = device.tuning(spec, constants, shape)
            want = 0.0
            for tuning in (own, *tunings):
                label = " ".join(f"{name}={value}" for name, value in {**tuning.tile, **tuning.private}.items())
                try:
                    seconds, total = measure(device, spec, constants, tuning, bound, shape)
                except GpuError as exc:
                    print(f"{rows:5} {outs:6} x {width:6}  {exc}  {label}", flush=True)
                    continue
                want = want or total
                verdict = "" if abs(total - want) <= 1e-5 * want else "  WRONG"
                tops = 2e-12 * rows * outs * width / seconds
                print(
                    f"{rows:5} {outs:6} x {width:6} {1e6 * seconds:9.1f} us {tops:6.0f} TOPS{verdict}  {label}",
                    flush=True,
                )
            for view in bound:
                device.free(view.buffer)
    device.close()


if __name__ == "__main__":
    main()
