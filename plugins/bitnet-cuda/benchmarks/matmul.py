"""Tiles of the tensor-core matmul_ternary at the shapes of BitNet b1.58 2B-4T: exactness, then time.

    python plugins/bitnet-cuda/benchmarks/matmul.py [ROWS ...]

Every tile's result is held against numpy's integers. Times are medians of CUDA events, weights cold.
"""

from __future__ import annotations

import sys

import numpy as np
from bitnet_core.kernels.catalogue import MATMUL_TERNARY
from bitnet_core.model.launch import Launch
from bitnet_core.reference.ternary import ternary_dot
from bitnet_cuda.device import CudaDevice
from bitnet_cuda.tensor_tiles import batch_tile, mma_tile, wgmma_tile
from gpu_time import copies, put, seconds

MATRICES = {"qkv": (3840, 2560), "o": (2560, 2560), "gate_up": (13824, 2560), "down": (2560, 6912)}
FEW = [
    (tile_n, tile_t, (warps_n, warps_t, warps_k), stages)
    for tile_n, tile_t, warps_n, warps_t, warps_k, stages in (
        (16, 16, 1, 1, 4, 8),
        (64, 16, 4, 1, 2, 6),
        (64, 32, 4, 1, 2, 6),
        (128, 64, 4, 2, 1, 4),
    )
]
MANY = [
    (tile_n, tile_t, (warps_n, warps_t, warps_k), stages)
    for tile_n, tile_t, warps_n, warps_t, warps_k, stages in ((128, 128, 4, 2, 1, 4), (64, 64, 2, 2, 1, 4))
]
BATCH = (
    (16, 32, 1),
    (16, 32, 2),
    (16, 32, 3),
    (32, 32, 2),
    (32, 32, 3),
    (16, 16, 2),
    (32, 16, 2),
    (32, 16, 3),
    (64, 16, 3),
)
"""Weight rows, rows, and units of 256 columns of a warp."""
WARPGROUPS = (
    (128, 128, 2, 4, 2),
    (128, 128, 2, 5, 2),
    (256, 128, 2, 4, 1),
    (256, 128, 4, 4, 1),
    (128, 256, 2, 4, 1),
    (128, 64, 2, 6, 2),
    (128, 64, 2, 4, 4),
    (64, 128, 1, 4, 3),
    (64, 64, 1, 6, 4),
    (64, 64, 1, 5, 6),
)


def main() -> None:
    """Measure and print."""
    device = CudaDevice(0)
    rng = np.random.default_rng(1)
    table = []
    for rows in [int(word) for word in sys.argv[1:]] or [16, 32, 64, 512, 2048]:
        for name, (outs, width) in MATRICES.items():
            codes = rng.integers(0, 256, (outs, width // 4), dtype=np.uint8)
            codes &= ~(codes >> 1 & codes & 0x55)  # no code 3
            q = rng.integers(-127, 128, (rows, width), dtype=np.int8)
            qsum = q.sum(axis=1, dtype=np.int32)
            expected = (ternary_dot(codes, q) - qsum[:, None]).astype(np.float32)
            params = {"rows": rows, "outs": outs, "width": width, "y_stride": outs, "y_first": 0}
            weights, ones = copies(device, codes), put(device, np.ones(outs, np.float32))
            inputs = put(device, q), put(device, np.ones(rows, np.float32)), put(device, qsum)
            y = put(device, np.full((rows, outs), np.nan, np.float32))
            results = []
            tiles = [(tile, mma_tile(*tile)) for tile in (FEW if rows <= 64 else MANY)]
            tiles += [(tile, batch_tile(tile[0], tile[1], width, tile[2])) for tile in BATCH if rows <= 32]
            tiles += [(tile, wgmma_tile(*tile)) for tile in WARPGROUPS if rows > 64]
            for tile, tuning in tiles:
                if rows <= 64 and not tile[1] / 2 < rows <= 2 * tile[1]:
                    continue
                constants = {"ADD": 0, **tuning}
                kernel = device.compile(MATMUL_TERNARY, constants)
                grid, packed = MATMUL_TERNARY.grid(params, constants), MATMUL_TERNARY.pack(params)
                launches = [Launch(kernel, grid, (w, ones, *inputs, y), packed) for w in weights]
                device.upload(y, np.full(expected.shape, np.nan, np.float32).reshape(-1).view(np.uint8).data)
                launch = launches[0]
                device.launch(launch.kernel, launch.grid, launch.views, launch.params)
                actual = np.empty_like(expected)
                device.download(y, actual.reshape(-1).view(np.uint8).data)
                wrong = int((actual != expected).sum())
                results.append((seconds(device, launches), tile, wrong))
            for view in (*weights, ones, *inputs, y):
                device.free(view.buffer)
            for time, tile, wrong in sorted(results):
                rate = 2 * rows * outs * width / time / 1e12
                verdict = "exact" if not wrong else f"{wrong} WRONG"
                table.append(
                    f"{name:8} T{rows:<5} {tile!s:28} {1e6 * time:8.2f} us {rate:7.1f} TOPS "
                    f"{codes.nbytes / time / 1e9:6.0f} GB/s weights, {verdict}"
                )
                print(table[-1], flush=True)
    device.close()


if __name__ == "__main__":
    main()
