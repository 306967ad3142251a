"""Measure prefill speed, decode speed and memory of a model's shape (random weights).

    python plugins/bitnet-cuda/benchmarks/throughput.py [--shape 2b4t] [--activation-group-size 128] [--runs long]
        [--json FILE]

The same measurement as `bitnet bench --synthetic SHAPE --device cuda`, several times with the model loaded once.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from bitnet_core.api import load
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.measure.benchmark import measure
from bitnet_cuda.describe import device_infos
from bitnet_cuda.device import CudaDevice
from bitnet_hal.discovery.request import resolve_request
from bitnet_hal.errors import BitnetError

RUNS = (
    *((512, 16, 5, 1), (2048, 16, 5, 1), (128, 128, 5, 1), (512, 128, 3, 1), (2048, 128, 3, 1)),
    *((128, 128, 3, 8), (128, 128, 3, 32), (128, 128, 2, 64)),
)
"""Prompt tokens, generated tokens, repetitions, concurrent requests."""
LONG = (
    *((512, 16, 3, 1), (2048, 16, 3, 1), (128, 64, 3, 1), (2048, 64, 1, 1), (16384, 64, 1, 1)),
    *((128, 64, 1, 8), (128, 64, 1, 16)),
)
"""The runs for models of tens of billions of weights."""


def main() -> None:
    """Measure all runs and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="2b4t")
    parser.add_argument("--runs", choices=("usual", "long"), default="usual")
    parser.add_argument("--activation-group-size", type=int, choices=(32, 128))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    witness = CudaDevice(device_infos()[0])  # keeps the context alive, so that its own memory does not count
    free = witness.free_memory()
    began = time.perf_counter()
    lines: list[str] = []
    runs = []
    source, most = SyntheticSource(arguments.shape), 32 if arguments.runs == "usual" else 16
    block = arguments.activation_group_size
    with load(source, resolve_request("cuda:0"), max_sequences=most, activation_group_size=block) as model:
        seconds = time.perf_counter() - began
        for prompt, after, repeat, texts in RUNS if arguments.runs == "usual" else LONG:
            try:
                result = measure(model, seconds, prompt, after, repeat, texts)
            except BitnetError as exc:  # more requests than fit the cache
                print(f"{texts:2} x {prompt:4} + {after:3} tokens: {exc}")
                continue
            runs.append(result.document())
            lines.append(
                f"{texts:2} x {prompt:4} + {after:3} tokens: prefill {result.prefill_speed:9,.0f} tokens/s, "
                f"decode {result.decode_speed:8,.0f} tokens/s, {result.bandwidth_fraction:.0%} of the bandwidth"
            )
            print(lines[-1], flush=True)
        taken = free - witness.free_memory()
        memory = model.engine.memory()
        needed = int(memory["weights_bytes"] + memory["kv_cache_bytes"])
        print(
            f"device memory taken: {taken / 1e6:,.0f} MB; weights and KV cache {needed / 1e6:,.0f} MB, "
            f"so {taken / needed - 1:.1%} more; loaded in {seconds:.2f} s"
        )
        print(f"{witness.info.name}, {witness.info.driver}")
    witness.close()
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"taken": taken, "needed": needed, "lines": lines, "runs": runs}, indent=1)
        )


if __name__ == "__main__":
    main()
