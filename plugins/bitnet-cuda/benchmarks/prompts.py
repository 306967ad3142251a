"""Tiles of the tensor-core attention and of the f16 head for many rows: held against numpy, then timed.

    python plugins/bitnet-cuda/benchmarks/prompts.py

Shapes are those of BitNet b1.58 2B-4T. Times are medians of CUDA events.
"""

from __future__ import annotations

import numpy as np
from bitnet_core.kernels.catalogue import CATALOGUE
from bitnet_core.model.launch import Launch
from bitnet_core.testing.cases.attention import Batch
from bitnet_core.testing.cases.case import Case, expected
from bitnet_core.testing.cases.case import Launch as Inputs
from bitnet_core.testing.cases.registry import cases_of
from bitnet_core.testing.compare import check_outputs
from bitnet_cuda.device import CudaDevice
from bitnet_cuda.tensor_tiles import attention_tile, dense_tile
from gpu_time import put, seconds

ATTENTION = ((4, 16), (4, 32), (2, 32), (2, 64), (1, 64), (1, 128))
DENSE = (
    (512, 16, 1, 4),
    (512, 16, 1, 6),
    (256, 16, 1, 4),
    (1024, 16, 1, 5),
    (512, 32, 2, 4),
    (512, 32, 1, 4),
    (256, 32, 2, 4),
    (1024, 32, 2, 4),
    (512, 32, 2, 6),
    (512, 64, 2, 4),
)


def measure(device: CudaDevice, case: Case, inputs: Inputs, constants: dict[str, int], answer: object) -> str:
    """One line on one tile."""
    spec = CATALOGUE[case.kernel]
    views = {name: put(device, array) for name, array in inputs.arrays.items()}
    kernel = device.compile(spec, constants)
    bound = tuple(views[binding.name] for binding in spec.bindings)
    launch = Launch(kernel, spec.grid(inputs.params, constants), bound, spec.pack(inputs.params))
    device.launch(launch.kernel, launch.grid, launch.views, launch.params)
    actual = {name: np.empty_like(array) for name, array in inputs.arrays.items()}
    for name, array in actual.items():
        device.download(views[name], array.view(np.uint8).data)
    try:
        check_outputs(case, inputs, answer, actual)  # type: ignore[arg-type]  # what `expected` gave
        verdict = "right"
    except AssertionError as exc:
        verdict = f"WRONG: {exc}"[:200]
    time = seconds(device, [launch] * 20)
    for view in views.values():
        device.free(view.buffer)
    return f"{1e6 * time:9.2f} us  {verdict}"


def main() -> None:
    """Measure and print."""
    device, rng = CudaDevice(0), np.random.default_rng(1)
    attention, dense = (next(iter(cases_of(name))).build for name in ("attention", "matmul_dense"))
    for rows, first in ((512, 0), (512, 1536), (2048, 0)):
        inputs = attention(rng, Batch([(0, first + i) for i in range(rows)], (20, 5), 128))
        case = Case("attention", "prompt", lambda rng, inputs=inputs: inputs)
        inputs = case.launch()
        answer = expected(case.spec, inputs)
        for tile in ATTENTION:
            line = measure(device, case, inputs, {"KV": 1, **attention_tile(128, *tile)}, answer)
            print(f"attention rows {rows} from {first}: {tile!s:24} {line}", flush=True)
    whole = Case("matmul_dense", "head", lambda rng: dense(rng, 64, 128256, 2560, 1)).launch()
    answer = expected(CATALOGUE["matmul_dense"], whole)
    for rows in (16, 32, 64):
        part = {"x": whole.arrays["x"][: rows * 2560], "y": whole.arrays["y"][: rows * 128256]}
        inputs = Inputs({**whole.params, "rows": rows}, {**whole.arrays, **part}, whole.constants)
        case = Case("matmul_dense", "head", lambda rng, inputs=inputs: inputs)
        for tile in DENSE:
            if rows / 2 <= tile[1] <= rows:
                right = {**answer, "y": answer["y"][: rows * 128256]}
                line = measure(device, case, inputs, {"DTYPE": 1, **dense_tile(*tile)}, right)
                print(f"head rows {rows}: {tile!s:24} {line}", flush=True)
    device.close()


if __name__ == "__main__":
    main()
